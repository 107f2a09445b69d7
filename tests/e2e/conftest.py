"""Servers for the tests; see fleet.py. A test names its server as the parameter ``launch``."""

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import ensure_tiny_models
from tests.e2e.server import Launch, Server


def scheduled(items: list[pytest.Item]) -> list[Launch]:
    """Returns the servers that the collected tests need, in their order, references first."""
    schedule: list[Launch] = []
    for item in items:
        launch = item.callspec.params.get("launch") if hasattr(item, "callspec") else None
        if launch is None:
            continue
        reference = launch.reference()
        schedule += [reference] if reference not in schedule else []
        schedule += [launch] if launch != schedule[-1] else []
    return schedule


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Ends its servers whatever happens, a termination of the test run included."""
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", returncode=143))
    ensure_tiny_models()
    fleet = Fleet(scheduled(request.session.items))
    yield fleet
    fleet.stop()


@pytest.fixture
def server(fleet: Fleet, launch: Launch) -> Server:
    """The ready server of the test's parameter ``launch``."""
    return fleet.use(launch)
