"""What every policy can be asked."""

from collections.abc import Mapping
from typing import Any, Protocol

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, Plan, RoundTime, Tier


class Choices(Protocol):
    """What the loop asks for: plans, a pure function of what it was given before.

    A plan stands for some rounds. Then, or as soon as the batch changes or results were worked
    through, the loop counts the rounds that ran it and asks for the next one.
    """

    @property
    def ladder(self) -> Ladder:
        """The tiers that a plan may name."""

    @property
    def rounds_at_once(self) -> int:
        """For how many rounds a plan stands, and how many results are worked through together."""

    def choose(self, batch: DecodeBatch) -> Plan:
        """Returns what the next decode rounds run; only the tier counts, the loop adds the rest."""

    @property
    def wants_found(self) -> bool:
        """Whether a table shall be asked for drafts before the next round is planned."""

    def given_found(self, batch: DecodeBatch) -> Tier:
        """Returns what one round runs, given what a table has for it (``batch.found``)."""

    def count_rounds(self, num_rounds: int) -> None:
        """Takes note of rounds that were launched with the newest plan."""

    def run_length(self, batch: DecodeBatch) -> int:
        """Returns the decodes of the zero-step round that ``batch`` runs now: 1 to most_decodes."""

    def observe(self, observation: Observation) -> None:
        """Learns from a finished round; rounds arrive in launch order, some rounds late."""

    def after_results(self) -> None:
        """Takes note that all results so far were observed; decides anew where that is due."""

    def observe_time(self, round_time: RoundTime) -> None:
        """Takes what a round took; several ranks are taught by `learn_time`."""

    def is_probe(self, plan: Plan) -> bool:
        """Returns whether ``plan`` is a look at its tier now, not what the policy is on."""

    @property
    def decision(self) -> Decision | None:
        """The newest, to compare rounds with; None while there is none."""


class SimplePolicy:
    """One that neither probes nor weighs tiers; it learns nothing unless it says how."""

    rounds_at_once = 1
    wants_found = False
    decision: Decision | None = None

    def given_found(self, batch: DecodeBatch) -> Tier:
        """Is not asked."""
        raise NotImplementedError

    def run_length(self, _batch: DecodeBatch) -> int:
        """Returns 1."""
        return 1

    def count_rounds(self, num_rounds: int) -> None:
        """Takes no notice."""

    def after_results(self) -> None:
        """Takes no notice."""

    def observe(self, observation: Observation) -> None:
        """Takes no notice."""

    def observe_time(self, round_time: RoundTime) -> None:
        """Takes no notice."""

    def is_probe(self, _plan: Plan) -> bool:
        """Returns False."""
        return False


class Policy(Choices, Protocol):
    """What is asked of one beside its choices."""

    knows_costs: bool  # weighs what rounds take; else nobody measures it

    def learn_time(self, round_time: RoundTime) -> None:
        """Learns what a round took on rank 0; told alike on every rank."""

    def totals(self) -> Mapping[str, Mapping[str, int]]:
        """Returns what the policy counts, by name and label; all of it only grows."""

    def state(self, newest: DecodeBatch) -> dict[str, Any]:
        """Returns what the policy knows, for /server_info; plain builtins only.

        Works through rounds that wait to be learned from: for the thread that runs the rounds.
        """
