"""Pauses, preemption and aborts on the way leave every other answer as it is without speculation.

The tier changes every round, in runs of up to 8 decodes at zero steps, and all of it is done at
several moments of an answer.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.interruptions import (
    TEXTS,
    Reply,
    Stream,
    bodies,
    by_number,
    check_on_their_way,
    ending,
    interrupted,
    long_answers,
    paused,
    wait_for_waiting,
)
from tests.e2e.launches import WITH_SETTINGS
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import (
    Answers,
    check_identical,
    check_idle_and_whole,
    check_run_lengths,
    greedy,
)

MOMENTS = (1, 30, 70)  # tokens that every answer has by then
URGENT = "this goes first"
NUM_URGENT = 2
NUM_URGENT_TOKENS = 24
# Of an answer that is to be aborted.
NUM_ABORTED_TOKENS = 400
ABORTED_AFTER = range(1, 100, 9)  # tokens
NUM_WAITING = 3

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", WITH_SETTINGS, ids=str, scope="module"),
]


def urgent_answer(server: Server) -> list[int]:
    body = {"text": URGENT, "sampling_params": greedy(NUM_URGENT_TOKENS)}
    ids: list[int] = server.post("/generate", body)["output_ids"]
    return ids


def waiting_streams(server: Server, clients: ThreadPoolExecutor) -> list[Stream]:
    """Sends more requests to a server that is full, and returns when they wait."""
    more = [Stream(clients, server, body) for body in bodies(NUM_ABORTED_TOKENS)[:NUM_WAITING]]
    wait_for_waiting(server, NUM_WAITING)
    return more


def check_prefix(reply: Reply, reference: list[int]) -> None:
    """Asserts that an aborted answer is the beginning of the whole one."""
    ids = reply["output_ids"][: len(reference)]
    assert ids == reference[: len(ids)]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_paused_answer_goes_on(fleet: Fleet, launch: Launch, mode: str, moment: int) -> None:
    reference = fleet.ask_once(launch.reference(), long_answers)
    server = fleet.use(launch)

    def pause(streams: Sequence[Stream]) -> None:
        with paused(server, mode):
            check_on_their_way(streams)

    replies = interrupted(server, bodies(), pause, moment)
    check_identical(by_number(replies), reference)
    retractions = [reply["meta_info"]["num_retractions"] for reply in replies]
    assert retractions == [mode == "retract"] * len(TEXTS)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_preempted_answer_goes_on(fleet: Fleet, launch: Launch, moment: int) -> None:
    reference = fleet.ask_once(launch.reference(), long_answers)
    urgent = fleet.ask_once(launch.reference(), urgent_answer)
    server = fleet.use(launch)

    def preempt(streams: Sequence[Stream]) -> None:
        check_on_their_way(streams)
        sampling = greedy(NUM_URGENT_TOKENS)
        body = {"text": [URGENT] * NUM_URGENT, "sampling_params": sampling, "priority": 100}
        replies = server.post("/generate", body)
        assert [reply["output_ids"] for reply in replies] == [urgent] * NUM_URGENT

    replies = interrupted(server, bodies(priority=0), preempt, moment)
    check_identical(by_number(replies), reference)
    assert any(reply["meta_info"]["num_retractions"] for reply in replies)


def test_an_abort_of_all_ends_what_runs_and_what_waits(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), long_answers)
    server, aborted = fleet.use(launch), []

    def abort_all(_streams: Sequence[Stream]) -> None:
        with ThreadPoolExecutor(NUM_WAITING) as clients:
            more = waiting_streams(server, clients)
            server.post("/abort_request", {"abort_all": True})
            aborted.extend(stream.reply() for stream in more)

    running = interrupted(server, bodies(NUM_ABORTED_TOKENS), abort_all)
    check_idle_and_whole(server)
    assert {ending(reply) for reply in (*running, *aborted)} == {"abort"}
    for place, reply in enumerate(running):
        check_prefix(reply, reference[f"text {place}"])


def test_an_aborted_request_that_waits_never_runs(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), long_answers)
    server, aborted = fleet.use(launch), []

    def abort_waiting(streams: Sequence[Stream]) -> None:
        with ThreadPoolExecutor(NUM_WAITING) as clients:
            more = waiting_streams(server, clients)
            check_on_their_way(streams)  # or those who wait begin
            for stream in more:
                server.post("/abort_request", {"rid": stream.rid})
            aborted.extend(stream.reply() for stream in more)

    replies = interrupted(server, bodies(), abort_waiting)
    check_idle_and_whole(server)
    check_identical(by_number(replies), reference)
    assert {ending(reply) for reply in aborted} == {"abort"}
    assert [reply["output_ids"] for reply in aborted] == [[]] * NUM_WAITING


def test_an_abort_at_any_moment_ends_one_answer(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), long_answers)
    server = fleet.use(launch)
    long_runs = num_long_runs(server)
    for number, num_tokens in enumerate(ABORTED_AFTER):
        place = number % len(TEXTS)
        aborted_one(server, place, num_tokens, reference)
    check_idle_and_whole(server)
    assert num_long_runs(server) > long_runs


def aborted_one(server: Server, place: int, num_tokens: int, reference: Answers) -> None:
    """Aborts the answer to one text beside the one to the next, which goes on."""
    other = (place + 1) % len(TEXTS)
    pair = [bodies(NUM_ABORTED_TOKENS)[place], bodies()[other]]

    def abort(streams: Sequence[Stream]) -> None:
        server.post("/abort_request", {"rid": streams[0].rid})

    aborted, whole = interrupted(server, pair, abort, num_tokens)
    assert (ending(aborted), ending(whole)) == ("abort", "length")
    check_prefix(aborted, reference[f"text {place}"])
    assert whole["output_ids"] == reference[f"text {other}"]


def num_long_runs(server: Server) -> int:
    """Returns how many rounds ran as many decodes as a round may."""
    decodes = server.internal_state()["adaptive_spec"]["zero_step_decodes"]
    return int(decodes.get("8", 0))


def test_nothing_is_left_behind(fleet: Fleet, launch: Launch) -> None:
    check_identical(*fleet.compare(launch, long_answers))
    server = fleet.use(launch)
    check_idle_and_whole(server)
    spec = server.internal_state()["adaptive_spec"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    check_run_lengths(spec)
    assert min(spec["rounds"].values()) > 0, spec["rounds"]
