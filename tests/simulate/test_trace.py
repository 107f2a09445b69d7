"""The trace format: what is written is read, and what is no trace is refused with its line."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_adaptive_spec.tiers import PLAIN_TIER, Observation, Plan, chain_tier
from sglang_adaptive_spec.trace.format import (
    Trace,
    TraceError,
    TraceHeader,
    TraceRound,
    read_trace,
)
from sglang_adaptive_spec.trace.record import TraceRecorder

HEADER = TraceHeader(kind="synthetic", name="sample", max_steps=10, seed=7)


def write_trace(path: Path, trace: Trace) -> None:
    encoder = msgspec.json.Encoder()
    path.write_bytes(
        b"".join(encoder.encode(line) + b"\n" for line in (trace.header, *trace.rounds))
    )


@st.composite
def rounds(draw: st.DrawFn) -> TraceRound:
    requests = draw(st.lists(st.integers(0, 300), min_size=1, max_size=5, unique=True))
    num_steps = draw(st.integers(0, 10))
    counts = st.lists(st.integers(0, num_steps), min_size=len(requests), max_size=len(requests))
    firsts = st.lists(
        st.sampled_from([True, False, None]), min_size=len(requests), max_size=len(requests)
    )
    return TraceRound(
        time_s=draw(st.floats(0, 1e6)),
        context_tokens=draw(st.integers(0, 10**7)),
        num_steps=num_steps,
        requests=requests,
        num_correct_drafts=draw(counts),
        first_draft_correct=draw(st.none() | firsts),
        found=draw(st.none() | counts),
        kept=draw(st.none() | counts),
    )


@settings(max_examples=50)
@given(st.lists(rounds(), min_size=1, max_size=6))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, some: list) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    trace = Trace(HEADER, tuple(some))
    write_trace(path, trace)
    assert read_trace(path) == trace


def test_a_last_line_that_breaks_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    one = TraceRound(time_s=1, context_tokens=9, num_steps=3, requests=[0], num_correct_drafts=[2])
    write_trace(path, Trace(HEADER, (one, one)))
    path.write_bytes(path.read_bytes()[:-5])
    assert read_trace(path).rounds == (one,)


GOOD_ROUND = {
    "time_s": 1,
    "context_tokens": 9,
    "num_steps": 3,
    "requests": [4, 5],
    "num_correct_drafts": [2, 0],
}


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        ({"header": {"format_version": 2}}, 1, "format_version is 2"),
        ({"header": {"kind": "guessed"}}, 1, "Invalid enum value 'guessed'"),
        ({"round": {"text": "hello"}}, 2, "unknown field `text`"),
        ({"round": {"requests": [4, 4]}}, 2, "names one twice"),
        ({"round": {"requests": []}}, 2, "requests is empty"),
        ({"round": {"num_correct_drafts": [1]}}, 2, "1 entries for 2 requests"),
        ({"round": {"num_correct_drafts": [4, 0]}}, 2, "exceeds num_steps 3"),
        ({"round": {"num_steps": 11}}, 2, "above the header's max_steps 10"),
        ({"round": {"first_draft_correct": [True]}}, 2, "first_draft_correct has 1 entries"),
        ({"round": {"found": [3]}}, 2, "found has 1 entries"),
        ({"round": {"found": [3, 3], "kept": [3, 3, 3]}}, 2, "kept has 3 entries"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(
    tmp_path: Path, change: dict, line: int, says: str
) -> None:
    header = {"format_version": 1, "kind": "recorded", "name": "x", "max_steps": 10}
    lines = [header | change.get("header", {}), GOOD_ROUND | change.get("round", {})]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert says in str(caught.value)
    assert f"line {line}" in str(caught.value)


def test_the_recorder_says_what_a_table_had_and_what_of_it_was_verified(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = TraceRecorder(path, name="server", max_steps=5)
    five, plain, rows = Plan(chain_tier(5)), Plan(PLAIN_TIER), ("a", "b")
    told = [
        (five, [4, 0], [4, 0]),
        (five, [5, 2], [3, 2]),
        (plain, [0, 0], None),
        (plain, None, None),
    ]
    for plan, found, kept in told:
        recorder.record(Observation(plan, 2, rows, [0, 0], found=found, kept=kept), 40, 1.0)
    recorder.close()
    rounds = [(one.found, one.kept) for one in read_trace(path).rounds]
    assert rounds == [([4, 0], None), ([5, 2], [3, 2]), ([0, 0], None), (None, None)]
    assert b"found" not in path.read_bytes().splitlines()[-1]  # what has no table writes no key


def test_a_missing_file_and_one_without_rounds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "gone.jsonl")
    path = tmp_path / "empty.jsonl"
    write_trace(path, Trace(HEADER, ()))
    with pytest.raises(TraceError, match="there is no decode round"):
        read_trace(path)


def test_the_recorder_writes_numbers_for_requests_and_nothing_else_of_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = TraceRecorder(path, name="server", max_steps=5)
    recorder.record(Observation(Plan(chain_tier(5)), 2, ["rid-a", "rid-b"], [5, 0]), 40, 10.5)
    recorder.record(
        Observation(Plan(PLAIN_TIER), 2, ["rid-b", "rid-c"], [0, 0], [True, None]), 44, 10.6
    )
    recorder.close()
    trace = read_trace(path)
    assert trace.header == TraceHeader(kind="recorded", name="server", max_steps=5)
    assert [one.requests for one in trace.rounds] == [[0, 1], [1, 2]]
    assert trace.rounds[0].num_correct_drafts == [5, 0]
    assert trace.rounds[1].first_draft_correct == [True, None]
    assert [(one.time_s, one.context_tokens) for one in trace.rounds] == [(10.5, 40), (10.6, 44)]
    assert "rid" not in path.read_text()


def test_the_recorder_stops_at_its_size_and_leaves_a_trace_without_gaps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = TraceRecorder(path, name="server", max_steps=5, max_bytes=2000)
    for idx in range(100):
        recorder.record(Observation(Plan(chain_tier(5)), 1, ["a"], [idx % 6]), 40 + idx, float(idx))
    recorder.close()
    written = read_trace(path).rounds
    assert path.stat().st_size <= 2000
    assert [one.time_s for one in written] == [float(idx) for idx in range(len(written))]
    assert 0 < len(written) < 100
    assert recorder.num_dropped == 100 - len(written)
    (line,) = caplog.messages
    assert "trace.jsonl ends here: it has 2,000 bytes" in line


def test_a_full_disk_ends_the_trace_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sglang_adaptive_spec.trace.record.FLUSH_S", 0.001)
    recorder = TraceRecorder(Path("/dev/full"), name="server", max_steps=5)
    recorder._thread.join(10.0)  # the header is more than the disk holds
    recorder.record(Observation(Plan(chain_tier(5)), 1, ["a"], [2]), 40, 1.0)
    recorder.close()
    assert recorder.num_dropped == 1
    (line,) = caplog.messages
    assert "/dev/full ends here: writing failed ([Errno 28]" in line


def test_the_recorder_takes_nothing_after_it_was_closed(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "trace.jsonl", name="server", max_steps=5)
    recorder.record(Observation(Plan(chain_tier(5)), 1, ["a"], [2]), 40, 1.0)
    recorder.close()
    recorder.record(Observation(Plan(chain_tier(5)), 1, ["a"], [2]), 43, 2.0)
    assert recorder.num_dropped == 1
    assert len(read_trace(tmp_path / "trace.jsonl").rounds) == 1
