"""Visits to zero steps beside the same requests that never leave: round by round.

What a drafting round accepts follows from the draft's KV, which a catch-up must leave as it would
be. So rounds that start at the same output position must accept the same, and begin with the same
hidden state of the draft, or KV of a whole model. The latter is the sharper eye: the tiny drafts'
proposals hardly depend on what they attend to.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.e2e.server import Server

STEPS = 3  # as in plugins/e2e_plugins/visit_zero.py
VISIT_ROUNDS = 40
MAX_RELATIVE_LOSS = 0.05  # of the mean accepted after resuming
# Of hidden states. Measured: 4e-6 between the arms, 6e-4 with the weaker of the two mutants.
MAX_RELATIVE_NOISE = 5e-5


@dataclass
class Round:
    """One round of one request."""

    steps: int
    accepted: int
    first_draft: bool | None  # whether it would have held, where zero steps tell
    decodes: int  # of a zero-step round
    relay: list[float]  # of the draft's hidden state that the round began with


@dataclass
class Arm:
    """What the requests of one arm did, by request."""

    output_ids: list[list[int]]
    rounds: list[list[Round]]


@dataclass
class Comparison:
    """Rounds of a visit beside those, at the same output positions, of who never left."""

    accepted: list[tuple[int, int]] = field(default_factory=list)  # after resuming: visit, stay
    noise: list[float] = field(default_factory=list)  # after resuming: relative, of the relay
    first_drafts: list[tuple[bool, bool]] = field(default_factory=list)  # at zero steps
    visit_mean: float = 0.0  # accepted per round after resuming, at any position
    stay_mean: float = 0.0  # the same of who never left, from the same position on


def run_arm(server: Server, name: str, prompts: tuple[str, ...], num_tokens: int) -> Arm:
    """Sends ``prompts`` as one batch; ``name`` says which script the policy follows."""
    rids = [f"{name}-{number}-of-{len(prompts)}" for number in range(len(prompts))]
    sampling = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
    body = {"text": list(prompts), "rid": rids, "sampling_params": sampling}
    replies = server.post("/generate", body)
    state = server.internal_state()
    rounds = [paired(state["e2e_rounds"][rid], state["e2e_relays"][rid]) for rid in rids]
    return Arm([reply["output_ids"] for reply in replies], rounds)


def paired(accepted: list[list[Any]], relays: list[list[float]]) -> list[Round]:
    """Returns the rounds of a request, in order."""
    # The overlap schedule launches one round past the end, whose result may still be on its way.
    assert len(relays) - len(accepted) in (0, 1)
    return [Round(*one, relay) for one, relay in zip(accepted, relays, strict=False)]


def by_position(rounds: list[Round]) -> dict[int, Round]:
    """Returns the rounds of a request by the output position that they start at."""
    position, placed = 1, {}  # prefill gave the first token
    for one in rounds:
        placed[position] = one
        position += one.accepted + one.decodes
    return placed


def compare(visit: Arm, stay: Arm) -> Comparison:
    """Pairs the rounds of both arms, request by request."""
    result = Comparison()
    after: list[int] = []
    beside: list[int] = []
    for visiting, staying in zip(visit.rounds, stay.rounds, strict=True):
        here, there = by_position(visiting), by_position(staying)
        resumed = 1 + max(place for place, one in here.items() if one.steps == 0)
        after += [one.accepted for place, one in here.items() if place >= resumed]
        beside += [one.accepted for place, one in there.items() if place >= resumed]
        for place in sorted(here.keys() & there.keys()):
            one, other = here[place], there[place]
            if place >= resumed:
                result.accepted.append((one.accepted, other.accepted))
                result.noise.append(relative_difference(one.relay, other.relay))
            elif one.first_draft is not None:
                result.first_drafts.append((one.first_draft, other.accepted > 0))
    result.visit_mean = sum(after) / len(after)
    result.stay_mean = sum(beside) / len(beside)
    return result


def relative_difference(one: list[float], other: list[float]) -> float:
    """Returns the largest difference of two vectors, relative to the largest value."""
    differences = [abs(mine - yours) for mine, yours in zip(one, other, strict=True)]
    return max(differences) / max(map(abs, other))


def check_visit(rounds: list[Round], num_rounds: int = VISIT_ROUNDS) -> None:
    """Asserts that a request was away for the whole visit, and one catch-up round more."""
    steps = [one.steps for one in rounds]
    first, last = steps.index(0), len(steps) - 1 - steps[::-1].index(0)
    assert steps[first : last + 1] == [0] * (num_rounds + 1)
    assert set(steps[:first] + steps[last + 1 :]) == {STEPS}


def check_as_if_never_left(comparison: Comparison) -> None:
    """Asserts that a draft that caught up proposes what it would have proposed."""
    different = [pair for pair in comparison.accepted if pair[0] != pair[1]]
    assert not different, f"{len(different)} of {len(comparison.accepted)} rounds: {different[:5]}"
    noise = max(comparison.noise)
    assert noise < MAX_RELATIVE_NOISE, (
        f"rounds begin with another state of the draft, {noise:.1e} off"
    )
    assert comparison.visit_mean >= (1 - MAX_RELATIVE_LOSS) * comparison.stay_mean, comparison
    assert [seen for seen, _ in comparison.first_drafts] == [
        expected for _, expected in comparison.first_drafts
    ]
