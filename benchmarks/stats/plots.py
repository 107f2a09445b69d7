"""Colours of the plots, and how they are saved."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

# Colours of Okabe and Ito (2008), told apart by readers with any colour vision.
COLOURS = {"best static": "#999999", "builtin": "#d55e00", "ema": "#e69f00", "goodput": "#0072b2"}
STYLES = {"best static": "--", "builtin": "-", "ema": ":", "goodput": "-"}


def save(figure: Any, path: Path) -> None:
    """Writes an SVG without a date in it, so that equal results make equal files.

    Text stays text: drawn as paths it is half of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    fonts: Any = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans", "Verdana"]}
    with pyplot.rc_context(fonts | {"svg.hashsalt": path.name}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
