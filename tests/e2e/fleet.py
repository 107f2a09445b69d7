"""Servers shared by the tests, at most two alive: the one in use and the next one, starting.

A start is mostly imports on one core, and so is a test. The order in which the collected tests
need their servers is known, so the next one starts while the current one is asked.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.e2e.server import Launch, Server

Result = TypeVar("Result")


class Fleet:
    """Starts servers along a schedule and remembers what was asked of them once."""

    def __init__(self, schedule: Sequence[Launch]) -> None:
        self._schedule = list(schedule)
        self._servers: dict[Launch, Server] = {}
        self._remembered: dict[Any, Any] = {}

    def use(self, launch: Launch) -> Server:
        """Returns the ready server of ``launch``; ends those of earlier tests."""
        following = self._following(launch)
        for other in set(self._servers) - {launch, following}:
            self._servers.pop(other).stop()
        server = self._started(launch)
        if following is not None:
            self._started(following)
        server.wait_ready()
        return server

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

    def _started(self, launch: Launch) -> Server:
        if launch not in self._servers:
            self._servers[launch] = Server.start(launch)
        return self._servers[launch]

    def _following(self, launch: Launch) -> Launch | None:
        """The next launch of the schedule; what lies before has been used and is dropped."""
        if launch in self._schedule:
            del self._schedule[: self._schedule.index(launch) + 1]
        return next((other for other in self._schedule if other != launch), None)
