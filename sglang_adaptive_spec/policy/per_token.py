"""How often something happens per token, of late."""


class PerToken:
    """Owns events and tokens; both count half once ``memory_tokens`` were exceeded."""

    def __init__(self, memory_tokens: int) -> None:
        self._memory_tokens = memory_tokens
        self._tokens = 0.0
        self._events = 0.0

    @property
    def rate(self) -> float:
        """Events per token, 0 before any token."""
        return self._events / self._tokens if self._tokens else 0.0

    def count_tokens(self, num_tokens: int) -> None:
        """Counts the tokens of a finished round."""
        self._tokens += num_tokens
        if self._tokens > self._memory_tokens:
            self._tokens, self._events = self._tokens / 2, self._events / 2

    def count(self, num_events: int) -> None:
        """Counts events."""
        self._events += num_events
