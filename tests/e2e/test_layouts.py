"""Two nodes, or two tokenizer workers: the text is that of one."""

import urllib.error
from dataclasses import replace

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import NUM_STEPS, forced
from tests.e2e.server import Launch, Server, free_port
from tests.e2e.traffic import batch_answers, check_identical, check_idle_and_whole, greedy

FORCED = forced("eagle3", overlap=True)
NODES = ("--tp-size", "2", "--nnodes", "2")
WORKERS = replace(
    FORCED, name="eagle3-tokenizers", args=(*FORCED.args, "--tokenizer-worker-num", "2")
)

pytestmark = pytest.mark.e2e


def check_rounds(server: Server) -> None:
    check_idle_and_whole(server)
    spec = server.internal_state()["adaptive_spec"]
    assert (spec["mode"], spec["reason"]) == ("adaptive", None)
    assert set(spec["rounds"]) == {str(steps) for steps in NUM_STEPS}
    assert min(spec["rounds"].values()) > 0, spec["rounds"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}


def node(rank: int, address: str) -> Launch:
    """One of two nodes with one tensor-parallel rank each, on this machine."""
    where = ("--node-rank", str(rank), "--dist-init-addr", address)
    return replace(FORCED, name=f"eagle3-node-{rank}", args=(*FORCED.args, *NODES, *where))


def test_two_nodes_switch_together(fleet: Fleet) -> None:
    reference = fleet.ask_once(FORCED.reference(), batch_answers)
    address = f"127.0.0.1:{free_port()}"
    nodes = [Server.start(node(rank, address)) for rank in range(2)]
    try:
        nodes[0].wait_ready()
        check_identical(batch_answers(nodes[0]), reference)
        check_rounds(nodes[0])
        assert nodes[1].process.poll() is None
    finally:
        for server in nodes:  # the first one ends the other's ranks
            server.stop()


@pytest.mark.parametrize("launch", [WORKERS], ids=str)
def test_two_tokenizer_workers_serve_alike(fleet: Fleet, launch: Launch) -> None:
    check_identical(*fleet.compare(launch, batch_answers))
    check_rounds(fleet.use(launch))


@pytest.mark.parametrize("launch", [WORKERS], ids=str)
def test_behind_tokenizer_workers_the_scheduler_refuses_wrong_settings(server: Server) -> None:
    before = server.internal_state()["adaptive_spec"]["requests"]
    for settings, words in (({"max_steps": [[1]]}, "is [[1]];"), ({"exact": 3}, "is 3;")):
        sampling = greedy(4, custom_params={"adaptive_spec": settings})
        with pytest.raises(urllib.error.HTTPError) as caught:
            server.post("/generate", {"text": "a", "sampling_params": sampling})
        assert caught.value.code == 400
        assert words in caught.value.read().decode()
    after = server.internal_state()["adaptive_spec"]["requests"]
    assert after["refused"] == before["refused"] + 2
    check_idle_and_whole(server)
