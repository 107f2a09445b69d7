"""A target travels in pieces, and comes out as it was."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.lab import held_out, pack_pair
from examples.training import packing

CONTENT = bytes(range(256)) * 5


@pytest.fixture
def converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the target converted, once pieces of a kilobyte came to FOLDER."""
    found: list[bytes] = []

    def fetch_gguf(cache: Path) -> Path:
        cache.mkdir()
        (cache / "whole.gguf").write_bytes(CONTENT)
        return cache / "whole.gguf"

    def convert(gguf: Path, folder: Path) -> None:
        assert folder == tmp_path / "there" / "target"
        found.append(gguf.read_bytes())

    target = SimpleNamespace(fetch_gguf=fetch_gguf, convert=convert)
    monkeypatch.setattr(pack_pair, "target_of", lambda _pair: target)
    monkeypatch.setattr(pack_pair, "write_prompts", lambda _pair, _cache: None)
    monkeypatch.setattr(pack_pair, "PIECES", tmp_path / "pieces")
    monkeypatch.setattr(pack_pair, "PIECE_BYTES", 1000)
    return found


def test_pieces_that_come_one_a_call_are_joined(
    tmp_path: Path, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[tuple[Path, ...]] = []
    monkeypatch.setattr(packing, "unpack", lambda *folders: heads.append(folders))
    there = tmp_path / "there"
    assert pack_pair.main(["pack", "smollm2", "--cache", str(tmp_path / "cache")]) == 0
    pieces = sorted((tmp_path / "pieces" / "smollm2").iterdir())
    assert [piece.name for piece in pieces] == ["part.00", "part.01"]
    second = pieces[1].read_bytes()
    pieces[1].unlink()
    assert pack_pair.main(["keep", "smollm2", str(there)]) == 0
    pieces[0].unlink()
    pieces[1].write_bytes(second)
    assert pack_pair.main(["keep", "smollm2", str(there)]) == 0
    assert pack_pair.main(["unpack", "smollm2", str(there)]) == 0
    assert converted == [CONTENT]
    assert heads == []  # SmolLM2's is stored as it serves
    assert pack_pair.main(["unpack", "qwen-coder", str(there)]) == 0
    packed = Path("examples/qwen_coder/eagle3-head")
    assert heads == [(packed, there / "head", there / "target")]


def test_every_pair_has_a_target_and_prompts() -> None:
    assert pack_pair.PAIRS.keys() == held_out.PHASES.keys()
    names = {pack_pair.target_of(pair).name for pair in pack_pair.PAIRS}
    assert len(names) == len(pack_pair.PAIRS)
