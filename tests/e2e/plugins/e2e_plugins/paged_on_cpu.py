"""Pages of more than one token on a CPU: three kernels of the host's allocator in plain torch.

They are Triton's without a CPU branch (sglang 0.5.21 kernels/ops/memory/{allocator,common}.py); the
rest of the paged allocator is the host's own.
"""

from collections.abc import Callable
from typing import Any


class OnCpu:
    """Stands where a Triton kernel does: indexed by a grid, then called."""

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        return self._run


def extend(
    prefix_lens: Any, seq_lens: Any, last_loc: Any, free_pages: Any, out: Any, _bs: int, page: int
) -> None:
    """Writes the slots of every request's new tokens: the rest of its page, then free pages."""
    num_taken = num_written = 0
    rows = zip(prefix_lens.tolist(), seq_lens.tolist(), last_loc.tolist(), strict=True)
    for before, after, last in rows:
        num_in_page = min(after, -(-before // page) * page) - before
        slots = [last + 1 + offset for offset in range(num_in_page)]
        num_pages = -(-after // page) - (-(-before // page))
        # What does not fit is noticed by the caller, who then drops `out`.
        for start in free_pages[num_taken : num_taken + num_pages].tolist():
            slots += [start * page + offset for offset in range(page)]
        num_taken += num_pages
        wanted = after - before
        out[num_written : num_written + min(wanted, len(slots))] = out.new_tensor(slots[:wanted])
        num_written += wanted


def decode(seq_lens: Any, last_loc: Any, free_pages: Any, out: Any, bs: int, page: int) -> None:
    """The same for one new token a request."""
    extend(seq_lens - 1, seq_lens, last_loc, free_pages, out, bs, page)


def register() -> None:
    from sglang.srt.mem_cache import allocation
    from sglang.srt.mem_cache.allocator import paged

    allocation.get_last_loc_triton = allocation.get_last_loc_torch
    paged.alloc_extend_kernel, paged.alloc_decode_kernel = OnCpu(extend), OnCpu(decode)
