"""The injected verdicts: fair, independent, the same in every arm, in the host's own layout."""

import types
from typing import Any

import pytest
import torch

from benchmarks.inject.acceptance import MAX_NEW_TOKENS, request_ids
from benchmarks.inject.inject_plugin import (
    MAX_STEPS,
    TOKEN_ID,
    Injector,
    Verdicts,
    draws,
    request_hash,
    run_lengths,
)

CPU = torch.device("cpu")


def sample(chance: float, num_requests: int, num_positions: int, seed: int = 1) -> torch.Tensor:
    """Verdicts of a batch of equal requests from position 0 on."""
    hashes = [request_hash(seed, f"request {row}") for row in range(num_requests)]
    return draws(
        torch.full((num_requests,), chance, dtype=torch.float64),
        torch.tensor(hashes),
        torch.zeros(num_requests, dtype=torch.int64),
        num_positions,
    )


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.7, 0.95])
def test_verdicts_are_drawn_with_the_request_s_probability(chance: float) -> None:
    drawn = sample(chance, 64, 4096).double()
    error = (chance * (1 - chance) / drawn.numel()) ** 0.5
    assert abs(drawn.mean().item() - chance) <= 4 * error
    for row in drawn[:4]:  # and so does every single request
        assert abs(row.mean().item() - chance) <= 5 * error * 8


@pytest.mark.parametrize("distance", [1, 2, 3, 8])
def test_verdicts_at_different_positions_are_independent(distance: int) -> None:
    drawn = sample(0.7, 64, 4096).double() - 0.7
    along = (drawn[:, distance:] * drawn[:, :-distance]).mean().item() / 0.21
    across = (drawn[distance:] * drawn[:-distance]).mean().item() / 0.21
    assert abs(along) < 0.01
    assert abs(across) < 0.01


def test_another_seed_draws_anew_and_the_same_seed_the_same() -> None:
    assert torch.equal(sample(0.5, 8, 256), sample(0.5, 8, 256))
    assert not torch.equal(sample(0.5, 8, 256), sample(0.5, 8, 256, seed=2))


def test_a_verdict_belongs_to_its_position_wherever_the_round_began() -> None:
    hashes = torch.tensor([request_hash(1, "a"), request_hash(1, "b")])
    chance = torch.tensor([0.5, 0.8], dtype=torch.float64)
    whole = draws(chance, hashes, torch.tensor([0, 0]), 100)
    part = draws(chance, hashes, torch.tensor([40, 7]), 10)
    assert torch.equal(part[0], whole[0, 40:50])
    assert torch.equal(part[1], whole[1, 7:17])


def test_a_run_ends_at_the_first_rejection_and_at_the_longest_that_is_counted() -> None:
    accepted = torch.ones(2, 8 + MAX_STEPS, dtype=torch.bool)
    accepted[0, [2, 3]] = False
    runs = run_lengths(accepted, 8)
    assert runs[0].tolist() == [2, 1, 0, 0, *([MAX_STEPS] * 4)]
    assert runs[1].tolist() == [MAX_STEPS] * 8


def requests(name: str, batch_size: int, prompt_tokens: int = 5) -> list[Any]:
    """Requests as the host keeps them."""
    return [
        types.SimpleNamespace(
            rid=rid,
            origin_input_ids=[0] * (prompt_tokens + row),
            sampling_params=types.SimpleNamespace(max_new_tokens=64),
        )
        for row, rid in enumerate(request_ids(name, batch_size, 1))
    ]


def simulated(reqs: list[Any], seq_lens: torch.Tensor, num_steps: int) -> dict[str, torch.Tensor]:
    """What the hook makes of a round, called as the host calls its own simulation."""
    size, num_nodes = len(seq_lens), num_steps + 1
    roots = torch.arange(size, dtype=torch.int32) * num_nodes
    accept_index = torch.full((size, num_steps + 1), -1, dtype=torch.int32)
    accept_index[:, 0] = roots
    made = {
        "predict": torch.zeros(size * num_nodes, dtype=torch.int32),
        "num_correct_drafts": torch.full((size,), 99, dtype=torch.int32),
    }
    injector = Injector(1)

    def verify(_worker: Any, _batch: Any) -> None:
        made["accept_index"] = injector.accept_index(
            pytest.fail, accept_index=accept_index, bs=size, spec_steps=num_steps,
            candidates=None, target_predict=None, simulate_acc_len=1.0,
            simulate_acc_token_mode="fixed", **made,
        )  # fmt: skip

    batch = types.SimpleNamespace(reqs=reqs, seq_lens=seq_lens)
    injector.around_verify(verify, None, batch)
    return made


@pytest.mark.parametrize("num_steps", [0, 1, 3, 7])
def test_the_accepted_path_has_the_host_s_layout(num_steps: int) -> None:
    reqs = requests("mixed", 6)
    seq_lens = torch.tensor([len(req.origin_input_ids) + 3 for req in reqs])
    made = simulated(reqs, seq_lens, num_steps)
    width = num_steps + 1
    for row, count in enumerate(made["num_correct_drafts"].tolist()):
        assert 0 <= count <= num_steps
        path = [row * width + node for node in range(count + 1)]
        assert made["accept_index"][row].tolist() == path + [-1] * (num_steps - count)
    assert made["accept_index"].dtype == torch.int32
    assert set(made["predict"].tolist()) == {TOKEN_ID}


def test_a_deeper_arm_accepts_the_same_drafts_and_more() -> None:
    reqs = requests("0.85", 8)
    seq_lens = torch.tensor([len(req.origin_input_ids) + 10 for req in reqs])
    deep = simulated(reqs, seq_lens, 7)["num_correct_drafts"]
    shallow = simulated(reqs, seq_lens, 3)["num_correct_drafts"]
    assert torch.equal(deep.clamp(max=3), shallow)


def test_the_order_of_the_batch_and_the_neighbours_change_nothing() -> None:
    reqs = requests("0.7", 8)
    seq_lens = torch.tensor([len(req.origin_input_ids) + 2 * row for row, req in enumerate(reqs)])
    whole = simulated(reqs, seq_lens, 7)["num_correct_drafts"]
    order = [5, 0, 7, 2]
    part = simulated([reqs[row] for row in order], seq_lens[order], 7)["num_correct_drafts"]
    assert torch.equal(part, whole[order])


def test_rows_without_requests_accept_nothing() -> None:
    made = simulated([], torch.tensor([9, 9]), 3)
    assert made["num_correct_drafts"].tolist() == [0, 0]
    assert made["accept_index"].tolist() == [[0, -1, -1, -1], [4, -1, -1, -1]]


def test_the_first_draft_of_a_zero_step_round_gets_the_same_verdict() -> None:
    reqs = requests("0.5", 16)
    seq_lens = torch.tensor([len(req.origin_input_ids) + 4 for req in reqs])
    injector = Injector(1)
    batch = types.SimpleNamespace(reqs=reqs, seq_lens=seq_lens)

    def plain_round(_worker: Any, batch: Any, _barrier: Any) -> torch.Tensor:
        batch.seq_lens = batch.seq_lens + 1  # the round writes the next lengths before it looks
        return injector.first_draft_correct(pytest.fail, None, None, None)

    first = injector.around_verify(plain_round, None, batch, None)
    assert torch.equal(first, simulated(reqs, seq_lens, 1)["num_correct_drafts"] > 0)


def told(injector: Injector, reqs: list[Any], seq_lens: torch.Tensor, num_steps: int) -> Any:
    """What a round is told of confidence, and what it accepts, at a depth that ends no run."""
    batch = types.SimpleNamespace(reqs=reqs, seq_lens=seq_lens)
    made = []

    def verify(_worker: Any, _batch: Any) -> None:
        made.append(injector.confidence(pytest.fail, None, len(reqs), num_steps))
        made.append(injector._num_correct())

    injector.around_verify(verify, None, batch)
    return made


def test_a_scattered_draft_holds_with_the_chance_that_its_confidence_tells() -> None:
    injector, reqs = Injector(1), requests("0.9/0.3~3", 400)
    prompts = torch.tensor([len(req.origin_input_ids) for req in reqs])
    chances, held = [], []
    for position in range(50):
        confidence, correct = told(injector, reqs, prompts + position, 3)
        reached = correct[:, None] >= torch.arange(3)
        chances.append(confidence[reached])
        held.append((correct[:, None] > torch.arange(3))[reached])
    chance, has_held = torch.cat(chances), torch.cat(held).double()
    assert chance.std() > 0.1
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = (chance >= low) & (chance < low + 0.2)
        assert has_held[inside].mean() == pytest.approx(float(chance[inside].mean()), abs=0.02)
    firsts = told(injector, reqs, prompts, 3)[0][:, 0]
    assert float(firsts[::2].mean()) == pytest.approx(0.9, abs=0.03)
    assert float(firsts[1::2].mean()) == pytest.approx(0.3, abs=0.05)


def test_where_no_chance_scatters_confidence_tells_nothing() -> None:
    reqs = requests("0.95/0.3", 4)
    confidence, _ = told(Injector(1), reqs, torch.tensor([5, 6, 7, 8]), 3)
    assert (confidence == 0.5).all()


def test_a_seat_tells_nothing_of_who_sat_there_before() -> None:
    injector, lens = Injector(1), torch.tensor([5, 6, 7, 8])
    assert (told(injector, requests("0.7~3", 4), lens, 3)[0] != 0.5).any()
    assert (told(injector, requests("0.7", 4), lens, 3)[0] == 0.5).all()


def test_requests_come_and_go_and_keep_their_own_draws() -> None:
    reqs = requests("0.85", 12)
    seq_lens = torch.tensor([len(req.origin_input_ids) + 6 for req in reqs])
    whole = Verdicts(1, CPU).num_correct(reqs, seq_lens)
    assert len(set(whole.tolist())) > 3  # so that a mix-up would show
    verdicts = Verdicts(1, CPU)
    for rows in ([0, 1, 2, 3], [2, 3, 4], [4, 2], [9, 4, 10, 11, 0], [0, 1, 2, 3, 4, 5, 6, 7]):
        part = verdicts.num_correct([reqs[row] for row in rows], seq_lens[rows])
        assert torch.equal(part, whole[rows])


def test_seats_are_given_back() -> None:
    verdicts = Verdicts(1, CPU, max_requests=16, num_positions=256)
    reqs = requests("0.5", 20)
    seq_lens = torch.tensor([len(req.origin_input_ids) for req in reqs])
    for start in (0, 8, 0, 8):
        part = slice(start, start + 10)
        verdicts.num_correct(reqs[part], seq_lens[part])  # 36 seats taken, never 16 at a time


def test_a_request_longer_than_the_table_is_refused() -> None:
    (req,) = requests("0.5", 1)
    req.sampling_params.max_new_tokens = MAX_NEW_TOKENS + 1000
    with pytest.raises(ValueError, match=f"{MAX_NEW_TOKENS + 1000} new tokens"):
        Verdicts(1, CPU).num_correct([req], torch.tensor([5]))


def test_consecutive_rounds_of_any_depth_see_each_position_once() -> None:
    """The draft that was rejected is replaced by the bonus token; the next round is after it."""
    (req,) = requests("0.7", 1)
    prompt = len(req.origin_input_ids)
    verdicts = Verdicts(1, CPU)
    hashes = torch.tensor([request_hash(1, req.rid)])
    chance = torch.tensor([0.7], dtype=torch.float64)
    truth = draws(chance, hashes, torch.tensor([0]), 80)[0].tolist()
    position = 0
    while position < 40:
        count = min(int(verdicts.num_correct([req], torch.tensor([prompt + position]))), 3)
        after = truth[position + 1 : position + 5]
        assert count == next((d for d in range(3) if not after[d]), 3)
        position += count + 1
