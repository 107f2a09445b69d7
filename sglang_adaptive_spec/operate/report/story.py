"""From a server or a file to what is reported."""

from pathlib import Path

from sglang_adaptive_spec.loop.minutes import MOST_MINUTES
from sglang_adaptive_spec.operate import spans
from sglang_adaptive_spec.operate.report import hindsight
from sglang_adaptive_spec.operate.report.page import Story
from sglang_adaptive_spec.operate.server import ServerError, minutes
from sglang_adaptive_spec.trace.format import read_trace


def story_of_server(
    url: str, replica: int = 0, api_key: str | None = None, admin_key: str | None = None
) -> Story:
    """Returns the minutes of a server's replica.

    Raises:
        ServerError: It cannot be asked, or has served nothing yet.
    """
    replicas = minutes(url, MOST_MINUTES, api_key, admin_key)
    if not 0 <= replica < len(replicas):
        raise ServerError(
            f"{url} has no replica {replica}; allowed: 0 to {len(replicas) - 1}; fix: name one."
        )
    found = [span for span in spans.of_minutes(replicas[replica]) if span.num_rounds]
    if not found:
        raise ServerError(f"{url} has decoded nothing yet; fix: ask when it has served requests.")
    name = url if len(replicas) == 1 else f"{url} #{replica}"
    return Story(name, found, True, hindsight.of_minutes(spans.total(found)))


def story_of_trace(path: Path, costs: Path | None) -> Story:
    """Returns a recorded trace.

    Raises:
        ValueError: It is no trace, or the costs are not its server's.
    """
    trace = read_trace(path)
    return Story(str(path), spans.of_trace(trace), False, hindsight.of_trace(trace, costs))
