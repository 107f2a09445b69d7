"""Servers shared by the tests: the one in use, and the next ones, which start meanwhile.

A start is mostly imports, 19 s of CPU time in three processes, and a test keeps one core busy. The
order in which the collected tests need their servers is known, so both cores are kept at work.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.e2e.server import Launch, Server

Result = TypeVar("Result")

NUM_AHEAD = 2  # servers that start while another is used; each takes 1.5 GB


class Fleet:
    """Starts servers along a schedule and remembers what was asked of them once."""

    def __init__(self, schedule: Sequence[Launch]) -> None:
        self._schedule = list(schedule)
        self._servers: dict[Launch, Server] = {}
        self._remembered: dict[Any, Any] = {}

    def use(self, launch: Launch) -> Server:
        """Returns the ready server of ``launch``; ends those of earlier tests."""
        needed = [launch, *self._following(launch)]
        for other in set(self._servers) - set(needed):
            self._servers.pop(other).stop()
        for other in needed:
            if other not in self._servers:
                self._servers[other] = Server.start(other)
        self._servers[launch].wait_ready()
        return self._servers[launch]

    def ask_once(self, launch: Launch, question: Callable[[Server], Result]) -> Result:
        """Returns what ``question`` gives on the server of ``launch``, asked only once."""
        key = launch, question
        if key not in self._remembered:
            self._remembered[key] = question(self.use(launch))
        result: Result = self._remembered[key]
        return result

    def end(self, launch: Launch) -> None:
        """Ends a server that a test broke; it is started afresh if needed again."""
        if launch in self._servers:
            self._servers.pop(launch).stop()

    def stop(self) -> None:
        """Ends all servers."""
        while self._servers:
            self._servers.popitem()[1].stop()

    def _following(self, launch: Launch) -> list[Launch]:
        """The next launches of the schedule; what lies before has been used and is dropped."""
        if launch in self._schedule:
            del self._schedule[: self._schedule.index(launch) + 1]
        others = dict.fromkeys(other for other in self._schedule if other != launch)
        return list(others)[:NUM_AHEAD]
