"""Before which rounds a table is asked for drafts.

Drafting may not pay on the whole and still pay where a text repeats itself. A round that is planned
by a look-up is dearer than one of a stay at zero steps: the CPU waits for the tokens before it, and
no run of decodes goes on. So asking has a credit, in tokens of a request. What a round gave beyond
a stay in the same time is booked to it; when it is spent, a stay begins. From there the table is
asked once in a few dozen decodes, less often while that does not pay.
"""

from sglang_adaptive_spec.policy.settings import CadenceSettings


class TableAsks:
    """Owns the credit, and the decodes until the table is asked again."""

    def __init__(self, settings: CadenceSettings) -> None:
        self._settings = settings
        self._decodes_left = 0
        self._distance = settings.ask_decodes
        self._credit = settings.ask_credit

    @property
    def is_due(self) -> bool:
        """Whether to ask before the next round of a stay at zero steps."""
        return self._decodes_left <= 0

    def count_decodes(self, num_decodes: int) -> None:
        """Counts decodes of a request at zero steps."""
        self._decodes_left -= num_decodes

    def follow(self, is_drafting: bool) -> None:
        """Takes whether drafting pays on the whole, as it was decided anew."""
        self._credit = self._settings.ask_credit if is_drafting else 0.0
        if is_drafting:
            self._decodes_left = 0

    def answered(self, has_paid: bool) -> None:
        """Takes whether drafting pays with what was found."""
        if has_paid:
            self._decodes_left, self._distance = 0, self._settings.ask_decodes
        elif self._credit <= 0:
            self._leave()

    def book(self, gain: float) -> bool:
        """Takes what a round gave that was planned by a look-up; returns whether a stay begins.

        Args:
            gain: Tokens of a request beyond those of a stay at zero steps in the same time.
        """
        if not self.is_due:  # a probe's round, or one that was in flight when the stay began
            return False
        self._credit = min(self._credit + gain, self._settings.ask_credit)
        if self._credit > 0:
            return False
        self._leave()
        return True

    def _leave(self) -> None:
        self._credit, self._decodes_left = 0.0, self._distance
        self._distance = min(2 * self._distance, self._settings.max_ask_decodes)
