"""What a user sees while the demo runs: a bar, the turn under way, the answers so far."""

from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo.figures import figures_of
from examples.demo.traffic import Answer, Snapshot


class Screen:
    """A progress bar with a live line on a terminal; elsewhere a line an answer."""

    def __init__(self, num_answers: int, console: Console | None = None) -> None:
        self._console = console or Console()
        self._progress = Progress(
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=num_answers)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._console.print(text, highlight=False)

    def polled(self, arm: str, snapshot: Snapshot) -> None:
        """Shows the turn under way."""
        text = f"{snapshot.phase}: {arm}, {snapshot.num_steps} steps"
        self._progress.update(self._task, description=text)

    def answered(self, arm: str, answer: Answer) -> None:
        """Shows an answer."""
        self._progress.advance(self._task)
        self.say(answer_line(arm, [answer]))


def answer_line(arm: str, answers: Sequence[Answer]) -> str:
    """Returns what is said of answers to one prompt."""
    figures, first = figures_of(answers), answers[0]
    speed = f"{figures.tokens_per_s:5.1f} tok/s  accept length {figures.accept_length:.2f}"
    return f"{first.phase:<6} {first.source:<18} {arm:<16} {speed}"
