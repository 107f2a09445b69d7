"""Servers shared by the tests: the one in use, and the next ones, which start meanwhile.

A start is mostly imports, 19 s of CPU time in three processes, and a test keeps one core busy. The
order in which the collected tests need their servers is known, so both cores are kept at work. What
a server is compared with stays up as long as one of the next ones needs it.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.e2e.server import Launch, Server

Result = TypeVar("Result")

MAX_ALIVE = 4  # servers: the one in use, its reference, the next ones; each takes 1.5 GB


class Fleet:
    """Starts servers along a schedule and remembers what was asked of them once.

    Args:
        schedule: what the tests serve, in their order; the references come by themselves.
    """

    def __init__(self, schedule: Sequence[Launch]) -> None:
        self._schedule = list(schedule)  # from the one that was reached last
        self._servers: dict[Launch, Server] = {}
        self._remembered: dict[Any, Any] = {}

    def use(self, launch: Launch) -> Server:
        """Returns the ready server of ``launch``; ends those that are not needed soon."""
        if launch in self._schedule:
            del self._schedule[: self._schedule.index(launch)]
        needed = [launch, *self._near(launch)]
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
        """Ends a server that a test broke; it is started afresh if it is asked again."""
        self._schedule = [other for other in self._schedule if other != launch]
        if launch in self._servers:
            self._servers.pop(launch).stop()

    def stop(self) -> None:
        """Ends all servers."""
        while self._servers:
            self._servers.popitem()[1].stop()

    def _near(self, launch: Launch) -> list[Launch]:
        """Returns the scheduled launches from here on and their references, without ``launch``."""
        pairs = ((each.reference(), each) for each in self._schedule)
        others = dict.fromkeys(itertools.chain.from_iterable(pairs))
        return [other for other in others if other != launch][: MAX_ALIVE - 1]
