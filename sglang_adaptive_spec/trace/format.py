"""Traces: what a server's decode rounds accepted, as JSON lines. Lengths only, never text.

The first line is a `TraceHeader`, every other line a `TraceRound`. A round says at what depth it
ran and how many drafts each request accepted; a request that accepted all ``num_steps`` drafts is
censored there: a deeper round might have accepted more. A synthetic trace runs at its deepest tier
throughout. Field reference: docs/simulator.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import msgspec
from msgspec import Meta

FORMAT_VERSION = 1
LISTS = ("num_correct_drafts", "first_draft_correct", "found", "kept")  # an entry a request

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class TraceError(ValueError):
    """A file that is no trace: one sentence with file, line, what was got, and a fix."""


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a trace is and where it comes from."""

    format_version: int = FORMAT_VERSION
    kind: Literal["recorded", "synthetic"]
    name: str
    max_steps: Annotated[int, Meta(ge=1)]  # the deepest tier that may occur in it
    seed: int | None = None  # of a synthetic trace


class TraceRound(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One decode round; the lists have one entry per live request, in the same order."""

    time_s: Seconds  # when it was launched, on a monotonic clock of any origin
    context_tokens: Count  # summed over the requests; 0 if not known
    num_steps: Count  # of the tier that ran
    requests: list[Count]  # small numbers in order of first appearance
    num_correct_drafts: list[Count]
    # Would the first draft behind those verified have been accepted? Where it is known.
    first_draft_correct: list[bool | None] | None = None
    num_decodes: Annotated[int, Meta(ge=1)] = 1  # of a zero-step round: tokens of each request
    # Where a table drafts: drafts in a row that it had, of a round that it was asked for.
    found: list[Count] | None = None
    kept: list[Count] | None = None  # drafts that were verified, if not all

    @property
    def is_packed(self) -> bool:
        """Whether another number of each request's drafts was verified."""
        return self.kept is not None and self.found is None

    @property
    def num_tokens(self) -> int:
        """Tokens that the round gave, summed over its requests."""
        return self.num_decodes * len(self.requests) + sum(self.num_correct_drafts)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in memory, checked."""

    header: TraceHeader
    rounds: tuple[TraceRound, ...]


def read_trace(path: Path) -> Trace:
    """Returns the trace in a file.

    A last line that breaks off is left out: the server that wrote it may still be running.

    Raises:
        TraceError: It cannot be read, or is no trace of this version.
    """
    try:
        with open(path, "rb") as file:
            header, rounds = _read_header(path, file), tuple(_read_rounds(path, file))
    except OSError as error:
        raise _trace_error(path, 1, f"cannot be read ({error.strerror})", "name a file") from error
    if not rounds:
        raise _trace_error(path, 2, "there is no decode round", "record while requests are served")
    for number, one in enumerate(rounds, start=2):
        _check_round(path, number, one, header.max_steps)
    return Trace(header, rounds)


def _read_header(path: Path, file: BinaryIO) -> TraceHeader:
    line = file.readline()
    try:
        header = msgspec.json.decode(line, type=TraceHeader)
    except msgspec.DecodeError as error:
        fix = "name a file that `record` or the simulator wrote"
        raise _trace_error(path, 1, f"it is no trace header ({error})", fix) from error
    if header.format_version != FORMAT_VERSION:
        got = f"its format_version is {header.format_version}, this version reads {FORMAT_VERSION}"
        raise _trace_error(path, 1, got, "record it again")
    return header


def _read_rounds(path: Path, file: BinaryIO) -> Iterator[TraceRound]:
    decoder = msgspec.json.Decoder(TraceRound)
    for number, line in enumerate(file, start=2):
        if not line.endswith(b"\n"):
            return
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise _trace_error(path, number, f"it is no round ({error})", "record again") from error


def _check_round(path: Path, number: int, one: TraceRound, max_steps: int) -> None:
    size = len(one.requests)
    wrong = next((name for name in LISTS if _length(one, name) not in (None, size)), None)
    if size == 0 or len(set(one.requests)) != size:
        got = "requests is empty or names one twice"
    elif wrong is not None:
        got = f"{wrong} has {_length(one, wrong)} entries for {size} requests"
    elif one.num_steps > max_steps:
        got = f"num_steps is {one.num_steps}, above the header's max_steps {max_steps}"
    elif max(one.num_correct_drafts) > one.num_steps:
        got = f"num_correct_drafts exceeds num_steps {one.num_steps}"
    else:
        return
    raise _trace_error(path, number, got, "record it again")


def _length(one: TraceRound, name: str) -> int | None:
    entries = getattr(one, name)
    return None if entries is None else len(entries)


def _trace_error(path: Path, line: int, got: str, fix: str) -> TraceError:
    return TraceError(f"{path}, line {line}: {got}; fix: {fix}.")
