"""When to decide: every few rounds, and earlier where the batch or the acceptance changed."""

import math

from sglang_adaptive_spec.policy.acceptance.model import BLOCK_ROUNDS
from sglang_adaptive_spec.policy.settings import CadenceSettings

# Planned and learned from together, as long as no decision is due: CPU caches are cold after a GPU
# round, and the acceptance model works through as many. loop/timing.py keeps marks for so many and
# some.
MOST_AT_ONCE = BLOCK_ROUNDS
OVERDUE_ROUNDS = 5  # a decision waits for a result no longer
MOST_OF_ONE = 0.5  # of the interval: by so much one change brings a decision forward at most
# Of another size: where one request follows another, a batch is short by one for a round.
PATIENCE_ROUNDS = 2


class Cadence:
    """Owns the rounds until the next decision."""

    def __init__(self, settings: CadenceSettings) -> None:
        self._settings = settings
        self._is_fresh = False  # a batch of new requests was not decided about yet
        self._due = float(settings.decision_rounds)  # until the next decision
        self._least = settings.decision_rounds  # from one to the next, unless the size changes
        self._since = 0  # the last one
        self._interval = 0  # rounds between the last two decisions about this batch
        self._num_changes = 0  # of the acceptance, decided about
        self._size = self._decided_size = 0  # of the batch, now and when it was decided about
        self._num_off_size = 0  # rounds that the batch has had another size by now

    @property
    def rounds_at_once(self) -> int:
        """Rounds to go until the next decision, as far as they are taken together."""
        if self._is_fresh:
            return 1
        due = self._due
        if self._is_off_size:
            due = min(due, PATIENCE_ROUNDS - self._num_off_size)
        return min(max(math.ceil(due), 1), MOST_AT_ONCE)

    def count_rounds(self, num_rounds: int) -> None:
        """Counts rounds that were launched."""
        self._due -= num_rounds
        self._since += num_rounds
        if self._is_off_size:
            self._num_off_size += num_rounds
            if self._num_off_size >= PATIENCE_ROUNDS:
                self._due, self._interval = 0.0, 0

    def is_due_at_launch(self, has_batch_changed: bool) -> bool:
        """Returns whether to decide before a round.

        Else a result is waited for: there the GPU has a round to run, here it may wait for one.
        """
        return self._due <= (1 if has_batch_changed else 1 - OVERDUE_ROUNDS)

    def is_due_at_result(self, num_changes: int) -> bool:
        """Returns whether to decide now that results are in."""
        return self._due <= 0 or num_changes != self._num_changes

    def note_batch(self, size: int) -> None:
        """Brings the next decision forward, the more so the more of the batch may be new.

        It comes no nearer to the last one than decisions are where nothing changes. Another size is
        decided about once it has lasted, a far larger one at once.
        """
        # A place that is left is half a change; when it is taken, the other half.
        share = min(self._settings.redecide_share / size, MOST_OF_ONE)
        share *= 1.0 if size == self._size else 0.5
        self._size = size
        sooner = self._due - share * max(self._interval, self._least)
        self._due = min(self._due, max(sooner, self._least - self._since))
        if not self._is_off_size:
            self._num_off_size = 0
        if size > 2 * self._decided_size:
            self._due, self._interval = 0.0, 0

    def start_afresh(self, size: int) -> None:
        """Waits until a batch of none but new requests has shown something."""
        self._is_fresh, self._interval = True, 0
        self._decided_size = self._size  # this wait stands for that of another size
        rounds = math.ceil(self._settings.fresh_evidence / size)
        self._due = min(self._settings.fresh_rounds, rounds) + 1  # the round about to launch

    def has_acceptance_changed(self, num_changes: int) -> bool:
        """Returns whether there are more changes of acceptance than were decided about."""
        has_changed = num_changes != self._num_changes
        if has_changed:
            self._num_changes, self._interval = num_changes, 0
        return has_changed

    def decided(self, is_steady: bool, round_ms: float) -> None:
        """Sets the next decision; while they change nothing, each waits twice as long.

        Args:
            is_steady: Whether the decision changed nothing.
            round_ms: What a round at the tier in force takes: short ones want decisions farther
                apart, which take as long as ever.
        """
        settings, most = self._settings, self._settings.max_decision_rounds
        wanted = round(settings.decision_ms / (settings.decision_share * round_ms))
        self._least = min(max(wanted, settings.decision_rounds), most)
        interval = min(max(2 * self._interval, self._least), most) if is_steady else self._least
        self._due = self._interval = interval
        self._since = 0
        self._decided_size, self._num_off_size = self._size, 0
        self._is_fresh = False

    @property
    def _is_off_size(self) -> bool:
        size, decided = self._size, self._decided_size
        return abs(size - decided) > max(size, decided) / self._settings.redecide_share
