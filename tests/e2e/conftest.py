"""Servers for the tests; see fleet.py. A test names its server as the parameter ``launch``."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.smollm2.fetch_target import TARGET
from tests.e2e.fleet import Fleet
from tests.e2e.launches import PAIR, ensure_tiny_models
from tests.e2e.server import Launch, Server
from tests.e2e.smoke import SMOKE, chosen
from tests.hosts import CACHE

HERE = Path(__file__).parent


def parameters(item: pytest.Item) -> dict[str, object]:
    """Returns the parameters of a collected test."""
    return item.callspec.params if hasattr(item, "callspec") else {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets all tests of one server follow each other, whatever module they are in."""
    is_make_test = config.option.markexpr == "smoke" and config.args_source.name == "TESTPATHS"
    mark_smoke(items, must_be_whole=is_make_test)
    first: dict[object, int] = {}
    for number, item in enumerate(items):
        first.setdefault(parameters(item).get("launch", item), number)
    items.sort(key=lambda item: first[parameters(item).get("launch", item)])


def mark_smoke(items: list[pytest.Item], must_be_whole: bool) -> None:
    """Marks what smoke.py names; a name that no test has may not go unnoticed in `make test`."""
    found = set()
    for item in items:
        if item.path.parent == HERE and isinstance(item, pytest.Function) and parameters(item):
            entry = chosen(item.path.stem, item.callspec.id)
            if entry is not None:
                item.add_marker(pytest.mark.smoke)
                found.add((item.path.stem, entry))
    wanted = {(module, entry) for module, entries in SMOKE.items() for entry in entries}
    if must_be_whole and found != wanted:
        raise pytest.UsageError(f"smoke.py names tests that are not there: {wanted - found}")


def scheduled(items: list[pytest.Item]) -> list[Launch]:
    """Returns the servers that the collected tests are about, in their order."""
    schedule: list[Launch] = []
    for item in items:
        for name, launch in parameters(item).items():
            # Those that are refused never serve.
            if isinstance(launch, Launch) and name != "refused" and launch not in schedule[-1:]:
                schedule.append(launch)
    return schedule


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Ends its servers whatever happens, a termination of the test run included."""
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", returncode=143))
    schedule = scheduled(request.session.items)
    ensure_tiny_models()
    if any(launch.target == PAIR for launch in schedule):
        TARGET.fetch(CACHE)
    fleet = Fleet(schedule)
    yield fleet
    fleet.stop()


@pytest.fixture
def server(fleet: Fleet, launch: Launch) -> Server:
    """The ready server of the test's parameter ``launch``."""
    return fleet.use(launch)
