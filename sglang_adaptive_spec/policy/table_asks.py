"""When a table is asked for drafts from a stay at zero steps.

Drafting may not pay on the whole and still pay where a text repeats itself. A look-up costs about
as much as a decode or two, so it is made once in a few dozen decodes, less often while it finds
nothing. Where it finds what pays, the table is asked again before the next round.
"""

from sglang_adaptive_spec.policy.settings import CadenceSettings


class TableAsks:
    """Owns the decodes until the table is asked again."""

    def __init__(self, settings: CadenceSettings) -> None:
        self._settings = settings
        self._decodes_left = 0
        self._distance = settings.ask_decodes

    @property
    def is_due(self) -> bool:
        """Whether to ask before the next round."""
        return self._decodes_left <= 0

    def count_decodes(self, num_decodes: int) -> None:
        """Counts decodes of a request at zero steps."""
        self._decodes_left -= num_decodes

    def answered(self, has_paid: bool) -> None:
        """Takes whether drafting pays with what was found."""
        settings = self._settings
        if has_paid:
            self._decodes_left, self._distance = 0, settings.ask_decodes
            return
        self._decodes_left = self._distance
        self._distance = min(2 * self._distance, settings.max_ask_decodes)
