"""What the draft has not seen: which row keeps it, and what a catch-up reads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.host.drafters.backlog import (
    Backlog,
    RowMap,
    one_at_a_time,
    to_device,
)

WIDTH = 4
HIDDEN_SIZE = 4  # of 4 bytes: one unit of the ring
CPU = "cpu"


batches = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True), min_size=1)


# -- where --


@given(batches)
def test_rows_are_kept_while_a_request_stays_and_never_shared(rounds: list[list[int]]) -> None:
    row_map = RowMap(8, CPU)
    before: dict[int, int] = {}
    for requests in rounds:
        row_map.assign(requests)
        assert row_map.rows is not None
        rows = dict(zip(requests, row_map.rows.tolist(), strict=True))
        assert len(set(rows.values())) == len(requests)
        assert all(0 <= row < 8 for row in rows.values())
        assert all(rows[request] == before[request] for request in rows.keys() & before.keys())
        before = rows


def test_a_batch_larger_than_the_rows_has_none_until_it_fits_again() -> None:
    row_map = RowMap(2, CPU)
    row_map.assign(["a", "b"])
    row_map.assign(["a", "b", "c"])
    assert row_map.rows is None
    row_map.assign(["c", "a"])
    assert row_map.rows is not None
    assert sorted(row_map.rows.tolist()) == [0, 1]


def test_a_draft_is_known_to_be_current_only_after_a_catch_up_of_its_row() -> None:
    row_map = RowMap(2, CPU)
    row_map.assign(["a", "b"])
    assert row_map.caught_up([1, 2]) == [True, False]
    row_map.assign(["a", "b", "c"])
    assert row_map.caught_up([1, 1, 1]) == [False] * 3
    row_map.assign(["a", "c"])  # their debts count from here on
    assert row_map.caught_up([1, 1]) == [False] * 2
    row_map.assign(["a", "c"])
    assert row_map.caught_up([2, 1]) == [False, True]


def test_the_rows_are_on_the_device_once_per_batch() -> None:
    row_map = RowMap(4, CPU)
    row_map.assign(["a", "b"])
    rows = row_map.rows
    row_map.assign(["a", "b"])
    assert row_map.rows is rows
    row_map.assign(["b", "a"])
    assert rows is not None
    assert row_map.rows is not None
    assert row_map.rows.tolist() == rows.tolist()[::-1]


def test_values_keep_their_order_on_the_device() -> None:
    tensor = to_device([3, 1, 2], torch.device(CPU))
    assert (tensor.tolist(), tensor.dtype) == ([3, 1, 2], torch.int64)


# -- what --


def token_at(request: int, position: int) -> int:
    return 1000 * request + position


def hidden_at(request: int, position: int) -> list[float]:
    return [float(request), float(position), 0.5, float("inf")]


class Rounds:
    """Runs zero-step rounds of requests on a backlog; request r starts at ``lens[r]`` tokens."""

    def __init__(self, lens: list[int], num_rows: int) -> None:
        self.backlog = Backlog(num_rows, WIDTH, HIDDEN_SIZE, torch.float32, CPU)
        self.lens = list(lens)
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}  # the same while the batch is

    def keep(self, requests: list[int], rows: list[int]) -> None:
        positions = [self.lens[request] for request in requests]
        pairs = list(zip(requests, positions, strict=True))
        self.backlog.keep(
            self._rows.setdefault(tuple(rows), torch.tensor(rows)),
            torch.tensor([hidden_at(*pair) for pair in pairs]),
            torch.tensor([token_at(*pair) for pair in pairs]),
        )
        for request in requests:
            self.lens[request] += 1


requests_and_rounds = st.tuples(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),  # tokens of each request before
    st.integers(1, 3 * WIDTH),  # rounds
    st.data(),
)


@given(requests_and_rounds)
def test_the_window_holds_the_newest_positions_and_marks_the_owed_ones(
    case: tuple[list[int], int, st.DataObject],
) -> None:
    lens, num_rounds, data = case
    requests = list(range(len(lens)))
    rows = data.draw(st.permutations(range(len(lens) + 2)))[: len(lens)]
    debts = data.draw(
        st.lists(st.integers(1, min(num_rounds, WIDTH)), min_size=len(lens), max_size=len(lens))
    )
    rounds = Rounds(lens, len(lens) + 2)
    for _ in range(num_rounds):
        rounds.keep(requests, rows)
    ends = torch.tensor(rounds.lens)
    window = rounds.backlog.window(torch.tensor(rows), ends, torch.tensor(debts))

    assert window.positions.shape == window.is_owed.shape == (len(lens), WIDTH)
    tokens = window.tokens.view(len(lens), WIDTH)
    hidden = window.hidden_states.view(len(lens), WIDTH, HIDDEN_SIZE)
    for request, debt in zip(requests, debts, strict=True):
        end = rounds.lens[request]
        start = max(1, end - WIDTH)
        assert int(window.start[request]) == start
        assert int(window.num_tokens[request]) == end - start
        positions = window.positions[request].tolist()
        assert positions == list(range(start, start + WIDTH))
        owed = window.is_owed[request].tolist()
        assert [place for place, is_owed in zip(positions, owed, strict=True) if is_owed] == list(
            range(end - debt, end)
        )
        for column, position in enumerate(positions):
            if owed[column]:
                assert tokens[request, column] == token_at(request, position)
                assert hidden[request, column].tolist() == hidden_at(request, position)


def test_the_shapes_and_types_are_those_of_a_draft_extend() -> None:
    rounds = Rounds([5, 9], 2)
    rounds.keep([0, 1], [0, 1])
    window = rounds.backlog.window(torch.tensor([0, 1]), torch.tensor([6, 10]), torch.ones(2))
    assert window.tokens.shape == (2 * WIDTH,)
    assert window.hidden_states.shape == (2 * WIDTH, HIDDEN_SIZE)
    assert (window.tokens.dtype, window.num_tokens.dtype) == (torch.int64, torch.int32)
    assert (window.start.dtype, window.positions.dtype) == (torch.int64, torch.int64)


@pytest.mark.parametrize("hidden_size", [3, 8])
def test_hidden_states_of_any_size_come_back_as_they_were(hidden_size: int) -> None:
    backlog = Backlog(3, WIDTH, hidden_size, torch.bfloat16, CPU)
    hidden = torch.randn(2, hidden_size).to(torch.bfloat16)
    rows = torch.tensor([2, 0])
    backlog.keep(rows, hidden, torch.tensor([7, 8]))
    window = backlog.window(rows, torch.tensor([9, 9]), torch.ones(2))
    found = window.hidden_states[window.is_owed.flatten()]
    assert (found.dtype, found.tolist()) == (torch.bfloat16, hidden.tolist())


def test_a_row_taken_over_shows_its_new_owner_only() -> None:
    rounds = Rounds([3, 8], 1)
    for _ in range(WIDTH):
        rounds.keep([0], [0])
    rounds.keep([1], [0])
    rounds.keep([1], [0])
    window = rounds.backlog.window(torch.tensor([0]), torch.tensor([10]), torch.tensor([2]))
    assert window.tokens[window.is_owed.flatten()].tolist() == [token_at(1, 8), token_at(1, 9)]


@pytest.mark.parametrize("num_rows", [1, 7])
def test_the_memory_is_that_of_its_tensors(num_rows: int) -> None:
    backlog = Backlog(num_rows, WIDTH, HIDDEN_SIZE, torch.bfloat16, CPU)
    assert backlog.num_bytes == num_rows * WIDTH * (HIDDEN_SIZE * 2 + 8)


class Device:
    """An event of a device, and what was done with it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def record(self) -> None:
        self.calls.append("record")

    def synchronize(self) -> None:
        self.calls.append("synchronize")


def test_a_draft_extend_waits_for_the_one_before_where_they_may_be_close() -> None:
    device = Device()
    for _ in range(2):
        with one_at_a_time(device):
            device.calls.append("extend")
    assert device.calls == ["synchronize", "extend", "record"] * 2
    with one_at_a_time(None):
        device.calls.append("extend")
    assert device.calls[-2:] == ["record", "extend"]
