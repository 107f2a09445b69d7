"""A head in few bits: what is stored, what comes back, and how much is lost."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from examples import smollm2
from examples.training import packing
from examples.training.packing import in_nibbles, of_nibbles, quantised, restored

SHIPPED = Path(smollm2.__file__).parent / "eagle3-head"


@pytest.mark.parametrize(("bits", "most"), [(4, 0.13), (8, 0.008)])
def test_little_of_a_matrix_is_lost(bits: int, most: float) -> None:
    torch.manual_seed(0)
    weight = torch.randn(40, 256) * torch.rand(40, 1)
    kept = restored(*quantised(weight, bits))
    lost = (kept - weight).square().mean().sqrt() / weight.square().mean().sqrt()
    assert lost < most
    again = restored(*quantised(kept, bits))
    assert torch.allclose(again, kept, atol=float(kept.abs().max()) * most)


def test_a_scale_that_clips_is_taken_where_it_loses_less() -> None:
    weight = torch.full((1, 64), 0.1)
    weight[0, 0] = 0.12
    clipped = restored(*quantised(weight, 4))
    unclipped_error = (weight - (weight / (0.12 / 7)).round() * 0.12 / 7).square().sum()
    assert (clipped - weight).square().sum() < unclipped_error


def test_nibbles_hold_every_integer_of_four_bits() -> None:
    every = torch.arange(-7, 8, dtype=torch.int8).repeat(2, 2)  # an odd number: in both places
    assert torch.equal(of_nibbles(in_nibbles(every)), every)


def test_a_head_comes_back_with_the_targets_output_rows(tmp_path: Path) -> None:
    shipped = load_file(SHIPPED / "model.safetensors")
    config = json.loads((SHIPPED / "config.json").read_text())
    rows = torch.randn(config["vocab_size"], config["hidden_size"]).to(torch.bfloat16)
    trained, target, packed, head = (tmp_path / name for name in ("head", "model", "pack", "back"))
    target.mkdir()
    shutil.copytree(SHIPPED, trained)
    save_file({"model.embed_tokens.weight": rows}, target / "model.safetensors")
    to_pack = ["pack", str(trained), str(packed), "--target", str(target)]
    with pytest.raises(ValueError, match=r"its output rows are not those of .* --freeze-output"):
        packing.main(to_pack)
    shipped["lm_head.weight"] = rows[shipped["t2d"].nonzero().flatten()]
    save_file(shipped, trained / "model.safetensors")
    assert packing.main(to_pack) == 0
    assert packing.main(["unpack", str(packed), str(head), "--target", str(target)]) == 0
    back = load_file(head / "model.safetensors")
    assert {name: (t.shape, t.dtype) for name, t in back.items()} == {
        name: (t.shape, t.dtype) for name, t in shipped.items()
    }
    for name in ("d2t", "t2d", "norm.weight", "lm_head.weight"):
        assert torch.equal(back[name], shipped[name])
    assert (head / "config.json").read_text() == (SHIPPED / "config.json").read_text()
    matrices = [t for name, t in shipped.items() if t.dim() == 2 and name != "lm_head.weight"]
    num_bytes = sum(matrix.numel() for matrix in matrices) * (4 + 16 / packing.GROUP) / 8
    assert (packed / packing.PACKED).stat().st_size < 0.95 * num_bytes + 40_000
