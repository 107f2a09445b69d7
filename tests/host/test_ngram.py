"""What a table drafts: the paths it keeps, its newest tokens, what it learns."""

from array import array
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Plan, Tier, chain_tier

FULL, WIDTH, NUM_ROWS = 8, 4, 2
DEPTH = 18  # tokens that a look-up matches, SGLang's default
# As the host numbers them: level by level, the best of siblings last, padded with token 0.
TOKENS = [[1, 2, 5, 3, 6, 4, 7, 0], [9, 8, 7, 0, 0, 0, 0, 0]]
PARENTS = [[-1, 0, 0, 1, 2, 3, 4, 0], [-1, 0, 0, 0, 0, 0, 0, 0]]


def ancestors(parents: list[int]) -> np.ndarray:
    """[nodes, nodes]: each node's ancestors, itself included."""
    rows = np.eye(len(parents), dtype=np.int64)
    for node, parent in enumerate(parents):
        if parent >= 0:
            rows[node] |= rows[parent]
    return rows


def rows() -> list[Any]:
    return [SimpleNamespace(rid=f"{row}") for row in range(NUM_ROWS)]


MASKS = np.stack([ancestors(parents) for parents in PARENTS])


@pytest.fixture(scope="module")
def module(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.serving import ngram_worker

    return ngram_worker


@pytest.fixture
def worker(module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker whose host looks up TOKENS and MASKS."""
    seen: list[int] = []

    def look_up(self: Any, batch: Any) -> Any:
        seen.append(self.draft_token_num)
        return np.array(TOKENS).flatten(), MASKS.flatten()

    monkeypatch.setattr(module.NGRAMWorker, "_prepare_draft_tokens", look_up)
    worker: Any = object.__new__(module.AdaptiveNgramWorker)
    worker.full_width, worker._is_alone, worker.seen = FULL, False, seen
    worker.fetched = []  # batches that were given their lengths
    worker.draft_token_num, worker.max_trie_depth = WIDTH, DEPTH
    worker._trees = worker._found = worker._kept = None
    worker._prev_decode_rids, worker._tells_found = set(), True
    return worker


@pytest.mark.parametrize(
    ("width", "kept"),
    [
        (1, [[0], [0]]),
        (2, [[0, 2], [0, 2]]),
        (3, [[0, 1, 2], [0, 1, 2]]),
        (WIDTH, [[0, 1, 2, 4], [0, 1, 2, 3]]),
        (6, [[0, 1, 2, 3, 4, 6], [0, 1, 2, 3, 4, 5]]),
        (FULL, [list(range(FULL))] * NUM_ROWS),
    ],
)
def test_a_tier_verifies_the_likeliest_nodes_of_the_widest_tree(
    worker: Any, width: int, kept: list[list[int]]
) -> None:
    worker.draft_token_num = width
    drafts, mask = worker._prepare_draft_tokens(SimpleNamespace(reqs=rows()))
    assert worker.seen == [FULL]
    assert worker.draft_token_num == width
    assert drafts.reshape(NUM_ROWS, width).tolist() == [
        [tokens[node] for node in nodes] for tokens, nodes in zip(TOKENS, kept, strict=True)
    ]
    for row, nodes in enumerate(kept):
        found = mask.reshape(NUM_ROWS, width, width)[row]
        assert (found == MASKS[row][np.ix_(nodes, nodes)]).all()


@st.composite
def numbered_trees(draw: st.DrawFn) -> list[int]:
    """Parents of a tree's nodes, numbered level by level."""
    parents = [-1]
    for _ in range(draw(st.integers(0, 11))):
        parents.append(draw(st.integers(max(parents[-1], 0), len(parents) - 1)))
    return parents


def cost_of(node: int, parents: list[int]) -> int:
    """How deep a node is, and how many better siblings, numbered later, its path passes by."""
    if node == 0:
        return 0
    num_better = sum(parents[other] == parents[node] for other in range(node + 1, len(parents)))
    return 1 + num_better + cost_of(parents[node], parents)


@given(parents=numbered_trees(), num_padded=st.integers(0, 3), data=st.data())
def test_what_a_tier_keeps_is_a_tree_without_padding_and_no_worse_than_what_it_leaves(
    module: Any, parents: list[int], num_padded: int, data: st.DataObject
) -> None:
    num_real = len(parents)
    mask = ancestors(parents + [0] * num_padded)
    drafts = np.array([[*range(1, num_real + 1), *[0] * num_padded]])  # a token names its node
    width = data.draw(st.integers(1, num_real + num_padded))
    narrow = module.likeliest(module.Trees(drafts, mask[None]), width)
    kept_mask = narrow.mask.reshape(width, width)
    kept = [token - 1 for token in narrow.drafts[0] if token]
    assert len(kept) == min(width, num_real)  # no padding in place of a draft
    assert kept == sorted(kept)
    assert all(node == 0 or parents[node] in kept for node in kept)
    assert (kept_mask[: len(kept), : len(kept)] == mask[np.ix_(kept, kept)]).all()
    left = set(range(num_real)) - set(kept)
    costs = [cost_of(node, parents) for node in range(num_real)]
    assert all(costs[node] >= max(costs[other] for other in kept) for node in left)


def test_a_chain_is_kept_as_far_as_it_goes(module: Any) -> None:
    mask = ancestors([*range(-1, 5), 0, 0])  # and padding
    whole = module.Trees(np.array([[1, 2, 3, 4, 5, 6, 0, 0]]), mask[None])
    narrow = module.likeliest(whole, 4)
    assert narrow.drafts.tolist() == [[1, 2, 3, 4]]
    assert (whole.in_a_row, narrow.in_a_row) == ([5], [3])


def test_a_draft_whose_children_are_cut_off_is_no_padding(module: Any) -> None:
    """Token 0 below the root, followed by 5: padding is token 0 below the root and without any."""
    narrow = module.likeliest(module.Trees(np.array([[9, 0, 5]]), ancestors([-1, 0, 1])[None]), 2)
    assert narrow.drafts.tolist() == [[9, 0]]
    assert narrow.in_a_row == [1]


class Counted(np.ndarray):
    """Counts sums over all ancestors."""

    num_sums = 0

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        Counted.num_sums += 1
        return np.asarray(self).sum(*args, **kwargs)


@pytest.mark.parametrize(
    ("tells_found", "width", "num_sums"),
    [(True, WIDTH, 3), (True, FULL, 2), (False, WIDTH, 3), (False, FULL, 0)],
)
def test_depths_are_worked_out_once_and_only_where_they_are_read(
    worker: Any, monkeypatch: pytest.MonkeyPatch, tells_found: bool, width: int, num_sums: int
) -> None:
    monkeypatch.setattr(f"{__name__}.MASKS", MASKS.view(Counted))
    monkeypatch.setattr(Counted, "num_sums", 0)
    worker.draft_token_num, worker._tells_found = width, tells_found
    worker._prepare_draft_tokens(SimpleNamespace(reqs=rows()))
    # Of the masks by rows and by columns; of costs, where nodes are left out.
    assert Counted.num_sums == num_sums
    assert (worker._kept is not None) == tells_found


class Planned:
    """A controller that plans one tier and notes what it was told."""

    def __init__(self, wants_found: bool, tier: Tier) -> None:
        self.asks_first, self.tier = wants_found, tier
        self.launched = SimpleNamespace(tier=tier, plan=Plan(tier), found=None, kept=None)
        self.batch: DecodeBatch | None = None

    def wants_found(self, _batch: DecodeBatch) -> bool:
        return self.asks_first

    def before_decode(self, batch: DecodeBatch) -> Any:
        self.batch = batch
        return self.launched


@pytest.fixture
def serve(module: Any, worker: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a round; returns its controller, and what was done in which order."""

    def run(wants_found: bool, tier: Tier) -> tuple[Planned, list[str]]:
        told: list[str] = []

        def host_round(self: Any, batch: Any, on_publish: Any) -> Any:
            drafts, _ = self._prepare_draft_tokens(batch)
            told.append(f"verified {len(drafts)}")
            return SimpleNamespace(next_draft_input=SimpleNamespace())

        monkeypatch.setattr(module.NGRAMWorker, "forward_batch_generation", host_round)
        monkeypatch.setattr(module, "open_round", lambda _requests: None)
        worker.controller = Planned(wants_found, tier)
        worker._decodes = SimpleNamespace(slots=SimpleNamespace(forget=lambda: None))
        worker._describe = lambda batch: DecodeBatch(NUM_ROWS, tuple(range(NUM_ROWS)))
        worker._decode = lambda *_args: told.append("decoded")
        worker._learn_now_and_then = lambda *_args: told.append("learned now and then")
        worker._update_ngram_corpus = lambda _batch: told.append("learned")
        worker._hand_on = lambda _next_input: None
        worker._prev_decode_rids = {"gone"}
        worker._late_lengths = SimpleNamespace(fetch=lambda batch: worker.fetched.append(batch))
        mode = SimpleNamespace(is_decode=lambda: True)
        batch = SimpleNamespace(reqs=rows(), forward_mode=mode, seq_lens_cpu=None)
        worker.forward_batch_generation(batch)
        return worker.controller, told

    return run


@pytest.mark.parametrize("wants_found", [True, False])
@pytest.mark.parametrize("tier", [PLAIN_TIER, chain_tier(WIDTH - 1)])
def test_the_table_is_asked_once_a_round_and_before_it_is_planned_where_that_is_wanted(
    worker: Any, serve: Any, wants_found: bool, tier: Tier
) -> None:
    controller, told = serve(wants_found, tier)
    found = [3, 1]
    assert controller.batch.found == (found if wants_found else None)
    if tier == PLAIN_TIER:
        assert told == ["decoded", "learned" if wants_found else "learned now and then"]
        assert worker.seen == ([FULL] if wants_found else [])
    else:
        assert told == [f"verified {NUM_ROWS * WIDTH}"]
        assert worker.seen == [FULL]
        assert controller.launched.found == found
        assert controller.launched.kept == [2, 1]  # the widest has a node more of the first row
    asked = {f"{row}" for row in range(NUM_ROWS)} if worker.seen else set()
    assert worker._prev_decode_rids == {"gone", *asked}  # the host erases what it keeps of them
    assert len(worker.fetched) == (tier != PLAIN_TIER)  # a verify's mask takes them, no decode


@pytest.mark.parametrize(
    ("num_ranks", "budget", "alike"), [(1, 4, True), (2, 0, True), (2, 4, False)]
)
def test_ranks_that_may_see_a_corpus_in_different_rounds_plan_before_they_look(
    module: Any, monkeypatch: pytest.MonkeyPatch, num_ranks: int, budget: int, alike: bool
) -> None:
    from sglang_adaptive_spec.host.drafters import ngram

    spec = SimpleNamespace(speculative_ngram_external_sam_budget=budget)
    monkeypatch.setattr(ngram, "get_spec", lambda: spec)
    worker: Any = SimpleNamespace(target_worker=SimpleNamespace(model_runner=None))
    ranks: Any = SimpleNamespace(are_several=num_ranks > 1)
    drafter = ngram.NgramDrafter(worker, None, None, ranks)  # type: ignore[arg-type]
    assert (drafter.finds_alike, drafter.remark is None) == (alike, alike)


def test_ranks_that_may_find_unlike_drafts_tell_nobody_what_they_found(
    worker: Any, serve: Any
) -> None:
    worker._tells_found = False
    controller, told = serve(wants_found=True, tier=chain_tier(WIDTH - 1))
    assert controller.batch.found is None
    assert (controller.launched.found, controller.launched.kept) == (None, None)
    assert (told, worker.seen) == ([f"verified {NUM_ROWS * WIDTH}"], [FULL])


def test_a_round_that_nobody_waits_for_asks_no_table(worker: Any) -> None:
    worker.draft_token_num, worker._is_alone = WIDTH, True
    batch = SimpleNamespace(reqs=rows())
    drafts, mask = worker._prepare_draft_tokens(batch)
    worker._update_ngram_corpus(batch)
    assert worker.seen == []
    assert (len(drafts), len(mask)) == (NUM_ROWS * WIDTH, NUM_ROWS * WIDTH**2)


def test_what_rounds_hand_on_has_the_widest_stride(worker: Any) -> None:
    worker.draft_token_num = WIDTH
    tokens = torch.arange(NUM_ROWS * WIDTH, dtype=torch.int32)
    handed_on = SimpleNamespace(accept_tokens=tokens, draft_token_num=WIDTH)
    worker._hand_on(handed_on)
    rows = handed_on.accept_tokens.view(NUM_ROWS, FULL)
    assert rows[:, :WIDTH].flatten().tolist() == tokens.tolist()
    assert (handed_on.draft_token_num, handed_on.num_tokens_per_req) == (FULL, FULL)
    assert handed_on.accept_tokens.dtype == torch.int32


def test_a_zero_step_round_goes_on_from_the_last_token(module: Any) -> None:
    tokens = torch.tensor([5, 6, 7, 0, 8, 0, 0, 0])
    assert module.newest_tokens(tokens, torch.tensor([3, 1])).tolist() == [7, 8]


class Text:
    """A request under the overlap schedule: the CPU knows what all but two rounds wrote."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.puts = worker, list[list[int]]()
        self.prompt, self.rounds = [1, 2], list[list[int]]()
        worker.enable_overlap, worker._num_unlearned = True, 0
        worker.ngram_corpus = SimpleNamespace(batch_put=lambda rows: self.puts.extend(rows))

    def run(self, num_tokens: int, is_zero: bool) -> None:
        """Launches a round that writes so many tokens."""
        prompt, known = array("q", self.prompt), array("q", chain.from_iterable(self.rounds[:-1]))
        request = SimpleNamespace(
            origin_input_ids=prompt, origin_input_ids_unpadded=prompt, output_ids=known
        )
        batch = SimpleNamespace(reqs=[request], grammar_needs_sync=lambda: False)
        newest = self.rounds[-1] if self.rounds else []
        begin = 10 + sum(map(len, self.rounds))
        self.rounds.append(list(range(begin, begin + num_tokens)))
        if is_zero:
            self.worker._learn_now_and_then(batch, num_tokens)
        else:  # its own look-up has waited for the round before
            self.worker.prev_token_ids = newest + [0] * (FULL - len(newest))
            self.worker.prev_accept_lens = [len(newest)]
            self.worker._update_ngram_corpus(batch)

    def unlearned(self) -> list[tuple[int, int]]:
        """Neighbours that no put held."""
        put = {pair for tokens in self.puts for pair in pairwise(tokens)}
        written = [*self.prompt, *chain.from_iterable(self.rounds[:-1])]
        return [pair for pair in pairwise(written) if pair not in put]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, FULL), st.booleans()), max_size=60))
def test_the_table_learns_all_that_zero_steps_and_drafting_rounds_write(
    worker: Any, rounds: list[tuple[int, bool]]
) -> None:
    text = Text(worker)
    for num_tokens, is_zero in [*rounds, (1, False)]:
        text.run(num_tokens, is_zero)
    assert text.unlearned() == []
    assert (worker.draft_token_num, worker.max_trie_depth) == (WIDTH, DEPTH)


def test_the_table_learns_at_zero_steps_now_and_then(module: Any, worker: Any) -> None:
    text = Text(worker)
    for _ in range(2 * module.LEARN_EVERY):
        text.run(1, is_zero=True)
    assert len(text.puts) == 2
    assert text.puts[0] == [
        *text.prompt,
        *chain.from_iterable(text.rounds[: module.LEARN_EVERY - 2]),
    ]


@pytest.mark.parametrize("asked", ["NULL", "FULL"])
def test_graphs_of_zero_steps_keep_the_hidden_states_that_requests_may_ask_for(
    plugins_loaded: None, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

    from sglang_adaptive_spec.host.drafters import target
    from sglang_adaptive_spec.host.drafters.ngram import NgramDrafter

    monkeypatch.setattr(
        target.DecodeCudaGraphRunner, "capture_prepare", lambda runner: runner.capture_hidden_mode
    )
    graphs: Any = object.__new__(target.PlainDecodeGraphRunner)
    graphs._hidden_mode = NgramDrafter.hidden_mode
    graphs.capture_hidden_mode = CaptureHiddenMode[asked]  # as the host's constructor sets it
    assert graphs.capture_prepare() is CaptureHiddenMode[asked]
