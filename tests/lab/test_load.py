"""The client counts only rounds in which the whole batch lives, and what was asked for."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.lab.load import (
    SKIPPED_ROUNDS,
    PrefillNode,
    generate,
    generate_closed,
    timed_window,
    timed_windows,
)
from benchmarks.stats.tokens import expected_tokens

MS = 1_000_000
steady_window = partial(timed_window, settle_s=0, window_s=1e6)  # all that is steady
PREFILL = (0, 0, 0, None, False, False)


def decode(index: int, size: int, *, tokens: int = 0, width: int | None = 4, done: bool = False,
           graph: bool = True) -> tuple[object, ...]:  # fmt: skip
    """A decode round that ended at `index` times 10 ms."""
    return (index * 10 * MS, size, tokens or size, width, done, graph)


def test_the_rate_is_tokens_after_the_first_steady_round_over_the_time_since_it() -> None:
    num_steady = 21
    rounds = [PREFILL] + [
        decode(index, 4, tokens=10) for index in range(SKIPPED_ROUNDS + num_steady)
    ]
    window = steady_window(rounds, 4)
    assert window.num_tokens == 10 * (num_steady - 1)
    assert window.seconds == pytest.approx(0.01 * (num_steady - 1))
    assert window.tokens_per_s == pytest.approx(1000.0)


def test_rounds_with_a_finished_request_or_another_size_are_outside() -> None:
    rounds = [PREFILL, *(decode(index, 3) for index in range(5))]
    rounds += [decode(index, 4) for index in range(5, 25)]
    rounds += [decode(25, 4, done=True), decode(26, 4, done=True), decode(27, 2)]
    window = steady_window(rounds, 4)
    assert sum(window.rounds.values()) == 20 - SKIPPED_ROUNDS - 1


def test_a_prefill_in_between_splits_the_run_and_the_longest_part_counts() -> None:
    rounds = [decode(index, 2) for index in range(15)]
    rounds += [PREFILL, *(decode(index, 2) for index in range(20, 60))]
    assert sum(steady_window(rounds, 2).rounds.values()) == 40 - SKIPPED_ROUNDS - 1


def test_rounds_are_counted_per_tier_and_by_graph() -> None:
    rounds = [decode(index, 1, width=2) for index in range(13)]
    rounds += [decode(index, 1, width=8, graph=False) for index in range(13, 20)]
    window = steady_window(rounds, 1)
    assert window.rounds == {"1": 13 - SKIPPED_ROUNDS - 1, "7": 7}
    assert window.num_eager_rounds == 7


def test_of_zero_steps_each_decode_counts() -> None:
    """Else a run of eight decodes would be expected to give one token."""
    rounds = [decode(index, 4, tokens=4 * 8, width=1) for index in range(SKIPPED_ROUNDS + 11)]
    window = steady_window(rounds, 4)
    assert window.rounds == {"0": 10 * 8}
    assert expected_tokens([0.5] * 4, window.rounds) == window.num_tokens


def test_a_timed_window_starts_after_the_settling_and_is_as_long_as_asked() -> None:
    rounds = [PREFILL, *(decode(index, 2, width=2 if index < 20 else 6) for index in range(100))]
    window = timed_window(rounds, 2, settle_s=0.2, window_s=0.5)
    assert window.rounds == {"5": 50}
    assert window.seconds == pytest.approx(0.5)


def test_windows_in_a_row_share_no_time_and_begin_after_the_settling() -> None:
    rounds = [PREFILL, *(decode(index, 2, width=2 + index // 100) for index in range(300))]
    windows = timed_windows(rounds, 2, settle_s=0.5, window_s=0.4, count=3)
    assert [window.rounds for window in windows] == [{"1": 40}, {"1": 9, "2": 31}, {"2": 40}]
    assert [window.seconds for window in windows] == pytest.approx([0.4] * 3)


def test_a_timed_window_skips_the_first_rounds_without_settling_and_ends_with_the_batch() -> None:
    rounds = [decode(index, 2) for index in range(30)] + [decode(30, 2, done=True)]
    window = timed_window(rounds, 2, settle_s=0.0, window_s=5.0)
    assert sum(window.rounds.values()) == 30 - SKIPPED_ROUNDS - 1


def test_a_batch_that_ended_while_settling_is_refused() -> None:
    with pytest.raises(ValueError, match="batch 2: 0 steady rounds"):
        timed_window([decode(index, 2) for index in range(30)], 2, settle_s=1.0, window_s=1.0)


def test_without_speculation_the_rounds_have_no_tier() -> None:
    rounds = [decode(index, 1, width=None) for index in range(20)]
    assert set(steady_window(rounds, 1).rounds) == {"none"}


def test_a_run_too_short_to_measure_is_refused_with_the_flag_that_mends_it() -> None:
    with pytest.raises(ValueError, match=r"batch 7: 0 steady rounds of 10.*--new-tokens"):
        steady_window([decode(index, 6) for index in range(10)], 7)


class FakeServer(ThreadingHTTPServer):
    """Answers /generate with as many tokens as it is told to, and counts overlaps."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.num_tokens = num_tokens
        self.lock = threading.Lock()
        self.in_flight = self.most_in_flight = 0
        self.meeting = threading.Barrier(1)  # of requests that are answered together
        self.sampling: list[dict[str, object]] = []
        self.rooms: list[object] = []  # where the nodes of a pair meet

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One request to the fake."""

    server: FakeServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.sampling.append(body["sampling_params"])
            self.server.rooms.append(body.get("bootstrap_room"))
            self.server.in_flight += 1
            self.server.most_in_flight = max(self.server.most_in_flight, self.server.in_flight)
        self.server.meeting.wait(timeout=60)
        with self.server.lock:
            self.server.in_flight -= 1
        answers = [{"output_ids": [7] * self.server.num_tokens} for _ in body["input_ids"]]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answers).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the test's output clean."""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(num_tokens=5) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        yield fake
        fake.shutdown()


def test_a_batch_ignores_the_end_of_text_and_must_return_the_tokens_asked_for(
    server: FakeServer,
) -> None:
    assert len(generate(server.url, [[1], [2]], 5)) == 2
    assert server.sampling == [{"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}]
    with pytest.raises(RuntimeError, match=r"asked for 6 tokens per request, got lengths \{5\}"):
        generate(server.url, [[1]], 6)


def test_the_closed_loop_keeps_its_number_of_requests_in_flight(server: FakeServer) -> None:
    server.meeting = threading.Barrier(3)
    answers = generate_closed(server.url, [[number] for number in range(9)], 5, concurrency=3)
    assert len(answers) == 9
    assert server.most_in_flight == 3


def test_both_nodes_of_a_pair_get_a_request_at_once_and_meet_in_its_room(
    server: FakeServer,
) -> None:
    server.meeting = threading.Barrier(2)
    node = PrefillNode(server.url, bootstrap_port=1)
    answers = generate_closed(server.url, [[1], [2]], 5, concurrency=1, prefill=node)
    assert len(answers) == 2
    first, same, second, other = server.rooms
    assert first == same != second == other
