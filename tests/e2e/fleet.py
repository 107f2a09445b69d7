"""Servers shared by the tests: the one in use, and the next ones, which start meanwhile.

A start is mostly imports, 13 s of CPU time a process, and a question keeps one core busy. The order
in which the collected tests need their servers is known, so both cores are kept at work: the next
ones start meanwhile, and a server and its reference are asked at the same time. A reference stays
up as long as one of the next servers needs it.
"""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
        (server,) = self.use_together([launch])
        return server

    def use_together(self, launches: Sequence[Launch]) -> list[Server]:
        """Returns the ready servers; ends those that are not needed soon, starts the next ones."""
        for launch in launches:
            if launch in self._schedule:
                del self._schedule[: self._schedule.index(launch)]
        pairs = ((each.reference(), each) for each in self._schedule)
        wanted = dict.fromkeys(itertools.chain(launches, *pairs))
        needed = list(wanted)[: max(MAX_ALIVE, len(launches))]
        for other in set(self._servers) - set(needed):
            self._servers.pop(other).stop()
        for other in needed:
            if other not in self._servers:
                self._servers[other] = Server.start(other)
        for launch in launches:
            self._servers[launch].wait_ready()
        return [self._servers[launch] for launch in launches]

    def ask_once(self, launch: Launch, question: Callable[[Server], Result]) -> Result:
        """Returns what ``question`` gives on the server of ``launch``, asked only once."""
        (result,) = self.ask_together([launch], question)
        return result

    def ask_together(
        self, launches: Sequence[Launch], question: Callable[[Server], Result]
    ) -> list[Result]:
        """Returns what ``question`` gives on each server, asked only once, at the same time."""
        new = [launch for launch in launches if (launch, question) not in self._remembered]
        if new:
            with ThreadPoolExecutor(len(new)) as clients:
                replies = list(clients.map(question, self.use_together(new)))
            self._remembered |= {
                (launch, question): reply for launch, reply in zip(new, replies, strict=True)
            }
        return [self._remembered[launch, question] for launch in launches]

    def compare(
        self, launch: Launch, question: Callable[[Server], Result]
    ) -> tuple[Result, Result]:
        """Returns what ``question`` gives on the server of ``launch``, and on its reference."""
        got, expected = self.ask_together([launch, launch.reference()], question)
        return got, expected

    def end(self, launch: Launch) -> None:
        """Ends a server that a test broke; it is started afresh if it is asked again."""
        self._schedule = [other for other in self._schedule if other != launch]
        if launch in self._servers:
            self._servers.pop(launch).stop()

    def stop(self) -> None:
        """Ends all servers."""
        while self._servers:
            self._servers.popitem()[1].stop()
