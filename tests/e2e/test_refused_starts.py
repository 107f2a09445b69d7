"""A server that cannot serve what was asked for does not start, and says why in one sentence."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.e2e.conftest import parameters
from tests.e2e.launches import ALGORITHM, TIERS, TINY, adaptive, draft, ensure_tiny_models
from tests.e2e.server import OURS, Launch, Server

END_TIMEOUT_S = 900
MISSPELT = TIERS.with_name("misspelt.json")
EAGLE = (*ALGORITHM, *draft("eagle"))


def named(name: str, *args: str, plugin: str | None = None) -> Launch:
    """A good start but for ``args`` or the test's ``plugin``."""
    plugins = (OURS, plugin) if plugin else (OURS,)
    return replace(adaptive("eagle", *args), name=name, plugins=plugins)


# Launch and the sentence's parts: what, got, allowed, fix.
REFUSED: dict[Launch, tuple[str, ...]] = {
    Launch("misspelt-key", TINY, (*EAGLE, "--speculative-adaptive-config", str(MISSPELT))): (
        "misspelt.json",
        "candidate_step",
        "candidate_steps",
    ),
    Launch("two-controllers", TINY, (*EAGLE, "--speculative-adaptive")): (
        "--speculative-adaptive",
        "ADAPTIVE_EAGLE",
        "drop --speculative-adaptive",
    ),
    named("no-candidate", "--speculative-num-steps", "2"): (
        "--speculative-num-steps",
        "2",
        "0, 1, 3, 5",
    ),
    # No hooks at all: the name reaches the host, where the registered sentinel refuses.
    named("no-hooks", plugin="no_hooks"): (
        "the hooks of sglang_adaptive_spec were not applied",
        "load_plugins()",
    ),
}
# What ends without ever answering: launch and what its log says.
NEVER_READY: dict[Launch, tuple[str, ...]] = {
    named("deaf-scheduler", plugin="deaf_scheduler"): (
        "sglang_adaptive_spec is not active in the scheduler process",
    ),
    Launch("unmeasurable", TINY, EAGLE, plugins=(OURS, "unmeasurable")): (
        "cannot measure tier 0",
        "e2e: the batch has no such thing",
        "conservative",
    ),
}

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Iterator[dict[Launch, Server]]:
    """All that the collected tests ask for, at once: each is over after its imports."""
    ensure_tiny_models()
    asked = [parameters(item).get("refused") for item in request.session.items]
    launches = (*REFUSED, *NEVER_READY)
    servers = {launch: Server.start(launch) for launch in launches if launch in asked}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.mark.parametrize("refused", REFUSED, ids=lambda launch: launch.name)
def test_a_mistake_ends_the_start_with_one_sentence(
    started: dict[Launch, Server], refused: Launch
) -> None:
    server = started[refused]
    assert server.wait_end(END_TIMEOUT_S) != 0
    *_, last = server.log_text().strip().splitlines()
    for part in REFUSED[refused]:
        assert part in last, server.log_text()[-3000:]


@pytest.mark.parametrize("refused", NEVER_READY, ids=lambda launch: launch.name)
def test_what_cannot_serve_as_asked_is_never_ready_and_says_why(
    started: dict[Launch, Server], refused: Launch
) -> None:
    server = started[refused]
    assert server.wait_end(END_TIMEOUT_S, never="/health") != 0
    for part in NEVER_READY[refused]:
        assert part in server.log_text()
