"""What the servers of a benchmark share: arguments for the GPU, and for the CPU host's dry runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.inject.acceptance import kinds_of
from benchmarks.lab.models import DRAFTERS, ModelPair, write_dummy_pair
from benchmarks.lab.run_files import add_run_flags
from benchmarks.lab.session import Plan

DUMMY_WEIGHTS = ("--load-format", "dummy")
GPU_COMMON = (
    *("--mem-fraction-static", "0.8", "--max-running-requests", "160"),
    *("--cuda-graph-max-bs-decode", "128", "--skip-tokenizer-init", "--random-seed", "1"),
)
# The CPU host of this repository: flags that make the same servers start without a GPU.
CPU_COMMON = (
    *("--device", "cpu", "--attention-backend", "intel_amx", "--dtype", "float32"),
    *("--mem-fraction-static", "0.5", "--max-total-tokens", "8192", "--disable-cuda-graph"),
    *("--max-running-requests", "8", "--skip-tokenizer-init", "--random-seed", "1"),
)
CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
EAGLE3_HEAD_FOLDER = Path("examples/smollm2/eagle3-head")
# One server of several: it sleeps when idle, and every request is prefilled anew, so that no
# eviction of an earlier batch falls into a window.
FLEET_COMMON = ("--sleep-on-idle", "--disable-radix-cache")
# SGLang's radix tree in Rust mistakes the type of a tensor where torch is not the release that
# SGLang pins ("insert value must be an int64 tensor, got Int16": 0.5.21 with torch 2.11), or ends.
PYTHON_TREE = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
# Two ranks do not need NVLink multicast, and not every host grants it: NCCL and torch's symmetric
# memory would ask for it.
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


def words(text: str) -> tuple[str, ...]:
    """Returns the words of a comma-separated list."""
    return tuple(word for word in text.split(",") if word)


def numbers(text: str) -> tuple[int, ...]:
    """Returns the integers of a comma-separated list."""
    return tuple(int(word) for word in words(text))


def add_fleet_flags(parser: argparse.ArgumentParser, max_total_tokens: int) -> None:
    """Adds what every benchmark of a fleet can be told."""
    add_run_flags(parser)
    parser.add_argument("--deadline", type=float, default=520.0, help="seconds [520]")
    parser.add_argument("--alone", action="store_true", help="one server at a time")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--first-repeat", type=int, default=1, help="draws of another command [1]")
    parser.add_argument("--seed", type=int, default=1, help="of the injected acceptance [1]")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--context-length", type=int, default=8192)
    parser.add_argument("--max-total-tokens", type=int, default=max_total_tokens)
    parser.add_argument("--port", type=int, default=31300)
    parser.add_argument("--attention-backend", help="of every server [SGLang's own choice]")
    parser.add_argument("--target", type=Path, help="a model folder instead of dummy weights")
    parser.add_argument("--draft", type=Path, help="the draft beside --target")
    parser.add_argument("--drafter", choices=DRAFTERS, default="eagle3", help="[%(default)s]")
    parser.add_argument("--dry-cpu", action="store_true", help="the same path without a GPU")


def fleet_plan(args: argparse.Namespace, scratch: Path) -> Plan:
    """Returns what every server of a fleet shares."""
    common = (*(CPU_COMMON if args.dry_cpu else GPU_COMMON), *FLEET_COMMON)
    return plan_with(args, scratch, (*common, "--max-total-tokens", str(args.max_total_tokens)))


def plan_with(args: argparse.Namespace, scratch: Path, arguments: Sequence[str]) -> Plan:
    """Returns a plan of servers with these arguments, the models and the context length."""
    common = [*arguments]
    if args.attention_backend:
        common += ["--attention-backend", args.attention_backend]
    if args.context_length:  # else the model's own
        common += ["--context-length", str(args.context_length)]
    if args.target is None:
        pair = write_dummy_pair(scratch / "models", args.drafter)
        common += DUMMY_WEIGHTS
    else:
        if args.draft is None and args.drafter != "eagle3":
            raise SystemExit(f"--drafter {args.drafter} beside --target needs --draft.")
        draft = (args.draft or EAGLE3_HEAD_FOLDER).resolve()
        pair = ModelPair(args.target.resolve(), draft, DRAFTERS[args.drafter][0])
    return Plan(
        pair=pair,
        common=tuple(common),
        environment=dict(CPU_ENVIRONMENT) if args.dry_cpu else {},
        folder=scratch,
        port=args.port,
        prompt_tokens=args.prompt_tokens,
        has_graphs=not args.dry_cpu,
        inject_seed=args.seed,
    )


def cells_of(batch_sizes: Sequence[int], acceptances: Sequence[str]) -> list[tuple[int, str]]:
    """Returns the cells of a matrix; rows of several kinds have equal parts."""
    return [
        (size, name)
        for size in batch_sizes
        for name in acceptances
        if not size % len(kinds_of(name))
    ]
