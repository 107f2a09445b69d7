"""From the runs of a matrix to its cells: one function, used to write and to verify."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.stats.provenance import check_same_code
from benchmarks.stats.windows import MATRIX_ARMS, WINDOW_KEYS, build_cell, by_cell, kept

Raw = Mapping[str, Any]


def merged(records: Sequence[Raw], is_incomplete: bool = False) -> dict[str, Any]:
    """Returns the result of several runs of the same code on the same machine kind.

    ``is_incomplete`` keeps cells that lack an arm; `make verify-results` names and refuses them.

    Raises:
        ValueError: Two runs differ in code, host or GPU, or a cell lacks an arm that others have.
    """
    windows = by_cell(records, "windows", ("batch_size", "acceptance"))
    if not is_incomplete:
        check_arms(windows)
    servers = [server for record in records for server in record["servers"]]
    cells = [build_cell(*where, _in_order(windows[where])) for where in sorted(windows)]
    return {"provenance": check_same_code(records), "cells": cells, "servers": servers}


def check_arms(cells: Mapping[tuple[int, str], Mapping[str, Any]]) -> None:
    """Refuses cells without an arm.

    Raises:
        ValueError: A cell lacks an arm that others have.
    """
    wanted = set().union(*cells.values())
    for where, cell in cells.items():
        if set(cell) != wanted:
            raise ValueError(f"cell {where} lacks {sorted(wanted - set(cell))}: run them.")


def _in_order(arms: Mapping[str, list[Raw]]) -> dict[str, list[dict[str, Any]]]:
    others = sorted(set(arms) - set(MATRIX_ARMS))
    names = [name for name in (*MATRIX_ARMS, *others) if name in arms]
    return {name: kept(arms[name], WINDOW_KEYS) for name in names}
