"""A trained head in few bits, small enough for a repository; unpacked to bfloat16 it serves.

Each matrix is cut into groups of columns. A group has a scale, in half precision, and a signed
integer of 4 or 8 bits a weight:

    weight = scale * integer

The scale is the one of a few that leaves the least squared error. What is stored is compressed:
most of the integers are small. Output rows are not stored: they are the target's (`train_head
--freeze-output`), and unpacking takes them from it.

    python -m examples.training.packing pack HEAD PACKED --target MODEL --bits 4
    python -m examples.training.packing unpack PACKED HEAD --target MODEL
"""

import argparse
import json
import lzma
import shutil
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

GROUP = 64
SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of the scale that clips nothing
PACKED = "packed.safetensors.xz"
INTEGERS, SCALES = ".integers", ".scales"
OUTPUT = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"  # the output rows of a target without OUTPUT
OFFSETS, KNOWN = "d2t", "t2d"


def quantised(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Returns integers and scales of a matrix whose columns are a multiple of GROUP.

    Args:
        weight: [rows, columns].
        bits: 4 or 8.

    Returns:
        [rows, columns] int8 and [rows, columns / GROUP] float16.
    """
    most = 2 ** (bits - 1) - 1
    groups = weight.float().unflatten(1, (-1, GROUP))
    full = groups.abs().amax(-1, keepdim=True).clamp(min=1e-8) / most
    best, least = full, torch.full_like(full, torch.inf)
    for shrink in SHRINKS:
        scale = (full * shrink).half().float()
        error = (_rounded(groups, scale, most) * scale - groups).square().sum(-1, keepdim=True)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    integers = _rounded(groups, best, most).to(torch.int8)
    return integers.flatten(1), best.squeeze(-1).half()


def _rounded(groups: Tensor, scale: Tensor, most: int) -> Tensor:
    return (groups / scale).round().clamp(-most, most)


def restored(integers: Tensor, scales: Tensor) -> Tensor:
    """Returns the matrix that `quantised` took, as far as it was kept: [rows, columns]."""
    return (integers.float().unflatten(1, (-1, GROUP)) * scales.float()[..., None]).flatten(1)


def in_nibbles(integers: Tensor) -> Tensor:
    """Returns two integers of 4 bits a byte: [rows, columns / 2] uint8."""
    shifted = (integers + 8).to(torch.uint8)
    return shifted[:, ::2] | (shifted[:, 1::2] << 4)


def of_nibbles(packed: Tensor) -> Tensor:
    """Returns what `in_nibbles` took: [rows, columns] int8."""
    both = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
    return both.to(torch.int8) - 8


def pack(head: Path, packed: Path, target: Path, bits: int) -> None:
    """Writes the head of a folder in ``bits`` bits a weight to another, without output rows.

    Raises:
        ValueError: These are not the target's.
    """
    tensors = load_file(head / "model.safetensors")
    if not torch.equal(tensors[OUTPUT], _output_rows(target, tensors[OFFSETS])):
        raise ValueError(
            f"{head}: its output rows are not those of {target}, so they would be lost; "
            "train it with --freeze-output."
        )
    kept: dict[str, Tensor] = {OFFSETS: tensors[OFFSETS].to(torch.int32)}
    for name, tensor in tensors.items():
        if name in (OUTPUT, OFFSETS, KNOWN):
            continue
        if tensor.dim() < 2:
            kept[name] = tensor
            continue
        integers, scales = quantised(tensor, bits)
        kept[name + INTEGERS] = in_nibbles(integers) if bits == 4 else integers
        kept[name + SCALES] = scales
    packed.mkdir(parents=True, exist_ok=True)
    (packed / PACKED).write_bytes(lzma.compress(save(kept), preset=9 | lzma.PRESET_EXTREME))
    shutil.copy(head / "config.json", packed)


def unpack(packed: Path, head: Path, target: Path) -> None:
    """Writes a packed head as SGLang loads it: bfloat16, output rows of the target's."""
    stored = load(lzma.decompress((packed / PACKED).read_bytes()))
    tensors = {}
    for name, tensor in stored.items():
        if name.endswith(INTEGERS):
            own = name.removesuffix(INTEGERS)
            integers = of_nibbles(tensor) if tensor.dtype == torch.uint8 else tensor
            tensors[own] = restored(integers, stored[own + SCALES]).to(torch.bfloat16)
        elif not name.endswith(SCALES):
            tensors[name] = tensor
    config = json.loads((packed / "config.json").read_text())
    tensors[OFFSETS] = tensors[OFFSETS].long()
    tensors[KNOWN] = torch.zeros(config["vocab_size"], dtype=torch.bool)
    tensors[KNOWN][_token_ids(tensors[OFFSETS])] = True
    tensors[OUTPUT] = _output_rows(target, tensors[OFFSETS])
    head.mkdir(parents=True, exist_ok=True)
    save_file(tensors, head / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(packed / "config.json", head)


def _token_ids(offsets: Tensor) -> Tensor:
    return offsets + torch.arange(len(offsets))


def _output_rows(target: Path, offsets: Tensor) -> Tensor:
    with safe_open(target / "model.safetensors", "pt") as file:
        name = OUTPUT if OUTPUT in file.keys() else EMBEDDING  # noqa: SIM118
        rows: Tensor = file.get_tensor(name)[_token_ids(offsets)]
    return rows


def main(argv: list[str] | None = None) -> int:
    """Packs a head, or unpacks one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("pack", "unpack"):
        command = commands.add_parser(name)
        command.add_argument("source", type=Path)
        command.add_argument("dest", type=Path)
        command.add_argument("--target", type=Path, required=True, help="its model folder")
    commands.choices["pack"].add_argument("--bits", type=int, choices=(4, 8), default=4)
    args = parser.parse_args(argv)
    if args.command == "pack":
        pack(args.source, args.dest, args.target, args.bits)
    else:
        unpack(args.source, args.dest, args.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
