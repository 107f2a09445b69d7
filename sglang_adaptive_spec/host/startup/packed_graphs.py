"""What packed rounds need of the target: a backend and graphs for numbers of verified tokens.

One family of graphs, keyed by tokens, serves every depth: rows of a window are its own affair. It
is built behind the tiers (drafters/packed_verify.py) and takes the target's places for the verify
of a packed round alone. Where rounds run without graphs, on a CPU, any number of tokens will do.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from sglang.srt.runtime_context import get_exec
from sglang.srt.utils import require_gathered_buffer

from sglang_adaptive_spec.host.attention.flashinfer.plans import has_uniform_plans
from sglang_adaptive_spec.host.drafters.target import TARGET_PLACES, has_decode_graphs
from sglang_adaptive_spec.host.engine import HostEngine, ModelRunner
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import Tier, chain_tier

TARGET_FLAGS = ("attention_backend", "decode_attention_backend", "prefill_attention_backend")
# FA3's graphs take rows of unlike lengths; on FlashInfer attention is over whole windows
# (attention/flashinfer/windows.py). On a CPU the backend of the tests takes such rows.
BACKENDS = ("fa3", "flashinfer")
# Numbers of tokens per octave. A choice: from one to the next is a quarter at most.
PER_OCTAVE = 4
# Requests up to which nothing is packed: the CPU bounds their rounds. Their whole windows are the
# fewest tokens that have a graph.
FEWEST_ROWS = 8
# Windows are those of batches above. Deeper chains than SMALL_STEPS of smaller ones, where packing
# hardly ever pays, would have every graph hold more tokens.
WINDOW_ABOVE = 32
SMALL_STEPS = 7
NO_GRAPHS = "rounds run without graphs"


@dataclass(frozen=True, slots=True)
class PackedTarget:
    """What packed verifies may be, and the target's state for them."""

    window: int  # tokens of a request at most
    most_rows: int
    widths: tuple[int, ...]  # verified tokens of a batch, ascending
    state: tuple[object, ...] | None  # of the target's places; None: no graphs

    def holds(self, tier: Tier) -> bool:
        """Returns whether rounds of ``tier`` can be packed."""
        return tier.topk == 1 and 1 < tier.num_draft_tokens <= self.window

    @contextlib.contextmanager
    def in_place(self, runner: ModelRunner) -> Iterator[None]:
        """Puts the state in the target's places."""
        if self.state is None:
            yield
            return
        before = [getattr(runner, name) for name in TARGET_PLACES]
        for name, value in zip(TARGET_PLACES, self.state, strict=True):
            setattr(runner, name, value)
        try:
            yield
        finally:
            for name, value in zip(TARGET_PLACES, before, strict=True):
                setattr(runner, name, value)


def packing_unsupported_reason(engine: HostEngine) -> str | None:
    """Returns why no round can be packed, or None."""
    config = engine.options.config
    if config.policy != "goodput":
        return f"policy {config.policy}"
    if config.packing is False:
        return "the config turns it off"
    if not engine.options.stages.has_draft:
        return "a table drafts trees"
    if engine.ranks.num_replicas > 1:
        return "ranks have requests of their own"
    if reason := _model_unsupported_reason(engine):
        return reason
    if engine.device == "cpu":  # it gains nothing there: for whoever tests
        return None if config.packing else NO_GRAPHS
    return _graphs_unsupported_reason(engine)


def confidence_unsupported_reason(engine: HostEngine) -> str | None:
    """Returns why the draft's confidence does not choose what is verified, or None."""
    if not engine.options.config.confidence:
        return "the config does not ask for it"
    if reason := packing_unsupported_reason(engine):
        return f"no packed rounds: {reason}"
    if engine.ranks.attention.world_size != engine.ranks.group.world_size:
        return "ranks that share no requests, and lengths are those of the first"
    if engine.server_args.speculative_use_rejection_sampling:
        return "--speculative-use-rejection-sampling, which draws drafts"
    return None


def _model_unsupported_reason(engine: HostEngine) -> str | None:
    """Returns why the target's verify cannot take rows of unlike lengths, or None."""
    runner = engine.target_runner
    if mambaish_config(runner.model_config) is not None:
        return "the model keeps recurrent state"
    if runner.model_config.model_is_mrope:
        return "the model has positions in several dimensions"
    if runner.lora_manager is not None:
        return "adapters"
    # Both from 0.5.22 on; block verification looks at drafts behind those that are verified.
    if getattr(engine.server_args, "speculative_use_block_verification", False):
        return "--speculative-use-block-verification"
    return "watermarks" if getattr(runner, "watermark_state", None) is not None else None


def _graphs_unsupported_reason(engine: HostEngine) -> str | None:
    """Returns why the target's verify cannot have graphs by tokens, or None."""
    view = resolved_view(engine.server_args)
    backends = {name for flag in TARGET_FLAGS if (name := getattr(view, flag))}
    if other := backends.difference(BACKENDS):
        return f"attention backend {min(other)}"
    if reason := _rows_unsupported_reason(engine, backends):
        return reason
    if not has_decode_graphs():
        return NO_GRAPHS
    if get_exec().graph.disable_cuda_graph_padding:
        return "--disable-cuda-graph-padding"
    if require_gathered_buffer():
        return "ranks gather tokens in equal parts"
    return None


def _rows_unsupported_reason(engine: HostEngine, backends: set[str]) -> str | None:
    """Returns why a verify's rows cannot differ on the target's attention backend, or None."""
    if len(backends) > 1:
        return f"attention backends {' and '.join(sorted(backends))}"
    backend = engine.target_runner.attn_backend
    if type(backend) is FlashInferAttnBackend:
        if backend.dispatch_reason is not None:
            return "attention backend flashinfer, with sliding windows"
        return None if has_uniform_plans(backend) else "FlashInfer's plans are left to SGLang"
    # Latent attention on FlashInfer takes such rows, and is not measured.
    is_known = "flashinfer" not in backends and backend.supports_ragged_verify_graph
    return None if is_known else f"attention backend {type(backend).__name__}"


def is_of_use(widths: Sequence[int], window: int, most_rows: int) -> bool:
    """Returns whether some batch can verify more than its roots and less than all it drafts."""
    return any(rows < width < rows * window for width in widths for rows in range(2, most_rows + 1))


def packed_window(ladder: Ladder, most_rows: int) -> int:
    """Returns the tokens of a request's window at the deepest chain that is packed."""
    first = min(WINDOW_ABOVE + 1, most_rows)
    larger = _deepest(ladder, range(first, most_rows + 1))
    smaller = _deepest(ladder, range(FEWEST_ROWS + 1, first))
    return chain_tier(max(larger, min(smaller, SMALL_STEPS))).num_draft_tokens


def _deepest(ladder: Ladder, sizes: Iterable[int]) -> int:
    """Returns the draft steps of the deepest chain of such batches."""
    steps = (tier.num_steps for size in sizes for tier in ladder.of(size) if tier.topk == 1)
    return max(steps, default=0)


def sizes_by_octave(most: int, fewest: int = 1) -> list[int]:
    """Returns numbers from ``fewest`` to ``most``, `PER_OCTAVE` to each octave, and the last."""
    numbers = [size for size in range(fewest, most) if not size % max(1, octave(size))]
    return [*numbers, most]


def octave(size: int) -> int:
    """Returns the distance of the numbers that are taken about ``size``."""
    return 1 << max(size.bit_length() - PER_OCTAVE.bit_length(), 0)


def widths_without_graphs(window: int, most_rows: int) -> tuple[int, ...]:
    """Returns numbers of tokens where any will do."""
    return tuple(sizes_by_octave(window * most_rows, fewest=2))


def capture_sizes(most_rows: int) -> Sequence[int]:
    """Returns requests whose whole windows are the numbers of tokens that get a graph."""
    return sizes_by_octave(most_rows, fewest=FEWEST_ROWS)
