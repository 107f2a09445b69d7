"""When to decide: every few rounds, and earlier where the batch or the acceptance changed."""

import math

from sglang_adaptive_spec.policy.settings import CadenceSettings

# Learned from together: no decision comes sooner anyhow. loop/timing.py keeps marks for so many.
RESULTS_AT_ONCE = 4
OVERDUE_ROUNDS = RESULTS_AT_ONCE + 1  # a decision waits for a result no longer


class Cadence:
    """Owns the rounds until the next decision."""

    def __init__(self, settings: CadenceSettings) -> None:
        self._settings = settings
        self.results_at_once = RESULTS_AT_ONCE  # 1 until a batch of new requests is decided about
        self._due = 0.0  # rounds until the next decision
        self._interval = 0  # rounds between the last two decisions about this batch
        self._num_changes = 0  # of the acceptance, decided about

    def count_round(self) -> None:
        """Counts a round that is about to launch."""
        self._due -= 1

    def is_due_at_launch(self, has_batch_changed: bool) -> bool:
        """Returns whether to decide before a round.

        Else a result is waited for: there the GPU has a round to run, here it may wait for one.
        """
        return self._due <= (0 if has_batch_changed else -OVERDUE_ROUNDS)

    def is_due_at_result(self, num_changes: int) -> bool:
        """Returns whether to decide now that a result is in; takes all changes of acceptance."""
        return self._due <= 0 or num_changes != self._num_changes

    def note_batch(self, size: int, size_before: int, is_other_slot: bool) -> None:
        """Brings the next decision forward, the more so the more of the batch may be new."""
        redecide_batch = self._settings.redecide_batch
        self._due -= self._settings.decision_rounds * redecide_batch / size
        if is_other_slot or abs(size - size_before) > size / redecide_batch:
            self._due = 0.0
        self._interval = 0

    def start_afresh(self, size: int) -> None:
        """Waits until a batch of none but new requests has shown something."""
        self.results_at_once = 1
        rounds = math.ceil(self._settings.fresh_evidence / size)
        self._due = min(self._settings.fresh_rounds, rounds)

    def has_acceptance_changed(self, num_changes: int) -> bool:
        """Returns whether there are more changes of acceptance than were decided about."""
        has_changed = num_changes != self._num_changes
        if has_changed:
            self._num_changes, self._interval = num_changes, 0
        return has_changed

    def decided(self, batch_size: int, is_steady: bool) -> None:
        """Sets the next decision; while they change nothing, each waits twice as long."""
        settings = self._settings
        shortest = settings.decision_rounds
        if batch_size <= settings.small_batch:
            shortest = settings.small_batch_decision_rounds
        if is_steady:
            shortest = min(max(2 * self._interval, shortest), settings.max_decision_rounds)
        self._due = self._interval = shortest
        self.results_at_once = RESULTS_AT_ONCE
