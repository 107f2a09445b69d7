"""After an update of the weights the text is that of no speculation with those weights.

SGLang reads the folder into the target; an EAGLE draft has other names, so it stays, beside the
target's embedding and head, which it shares. What it proposes may be worse, no text may be wrong.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.e2e.fleet import Fleet
from tests.e2e.interruptions import (
    NUM_LONG,
    TEXTS,
    Stream,
    bodies,
    by_number,
    check_on_their_way,
    interrupted,
    long_answers,
    paused,
)
from tests.e2e.launches import MODELS, WITH_SETTINGS
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import (
    PROMPTS,
    Answers,
    batch_answers,
    check_identical,
    check_idle_and_whole,
    greedy,
)

MOMENT = 40  # tokens that every answer has when the weights change under it

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", WITH_SETTINGS, ids=str, scope="module"),
]


def update(server: Server, name: str, **more: Any) -> None:
    """Loads the weights of a tiny target."""
    reply = server.post("/update_weights_from_disk", {"model_path": str(MODELS / name), **more})
    assert reply["success"], reply


@contextmanager
def updated(server: Server, name: str) -> Iterator[None]:
    """Serves other weights for a while."""
    update(server, name)
    try:
        yield
    finally:
        update(server, "target")


def answers_of_updates(server: Server) -> Answers:
    """Asks before an update, after one with the same weights, with others, and back again."""
    collected = {"before": batch_answers(server)}
    update(server, "target")
    collected["same"] = batch_answers(server)
    with updated(server, "target-2"):
        collected["other"] = batch_answers(server)
    collected["back"] = batch_answers(server)
    return collected


def test_the_text_is_that_of_the_weights_in_force(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, answers_of_updates)
    for name in ("before", "same", "other", "back"):
        check_identical(got[name], reference[name])
    assert got["before"] == got["same"] == got["back"]
    assert all(got["other"][prompt] != got["same"][prompt] for prompt in got["same"])


def test_the_same_weights_in_a_pause_change_nothing(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), long_answers)
    server = fleet.use(launch)

    def reload(streams: Sequence[Stream]) -> None:
        with paused(server, "in_place"):
            check_on_their_way(streams)
            update(server, "target", flush_cache=False)  # running requests keep their KV

    check_identical(by_number(interrupted(server, bodies(), reload, MOMENT)), reference)


def test_an_answer_goes_on_with_the_weights_of_a_pause(fleet: Fleet, launch: Launch) -> None:
    """From some token on it is what the new weights say to the prompt and all tokens before."""
    reference = fleet.ask_once(launch.reference(), long_answers)
    server = fleet.use(launch)

    def change(streams: Sequence[Stream]) -> None:
        with paused(server, "retract"):
            check_on_their_way(streams)
            update(server, "target-2")

    try:
        replies = interrupted(server, bodies(), change, MOMENT)
    finally:
        check_idle_and_whole(server)
        update(server, "target")
    got = by_number(replies)
    kept = {name: num_equal(got[name], reference[name]) for name in got}
    assert all(MOMENT <= num_kept < NUM_LONG for num_kept in kept.values()), kept
    tokenizer = Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))
    begun = [
        [*tokenizer.encode(text).ids, *got[name][: kept[name]]]
        for name, text in zip(got, TEXTS, strict=True)
    ]
    sampling = [greedy(NUM_LONG - num_kept) for num_kept in kept.values()]
    with updated(fleet.use(launch.reference()), "target-2"):
        body = {"input_ids": begun, "sampling_params": sampling}
        rest = fleet.use(launch.reference()).post("/generate", body)
    expected = by_number(rest)
    check_identical({name: got[name][kept[name] :] for name in got}, expected)


def num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns how many tokens two answers begin with together."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((place for place, (left, right) in pairs if left != right), len(one))


def test_drafts_hold_after_an_update(fleet: Fleet, launch: Launch) -> None:
    """The draft still knows the cycle of the target that it was made for."""
    fleet.ask_once(launch, answers_of_updates)
    server = fleet.use(launch)
    before = server.internal_state()["adaptive_spec"]["num_correct_drafts"]
    server.post("/generate", {"text": list(PROMPTS), "sampling_params": greedy()})
    check_idle_and_whole(server)
    after = server.internal_state()["adaptive_spec"]["num_correct_drafts"]
    assert sum(after.values()) > sum(before.values())
