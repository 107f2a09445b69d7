"""Tree building and verification against trees made of explicit nodes, level by level."""

from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_cpu_host.kernels.tree import (
    FULL_MASK,
    QLEN_ONLY,
    build_tree_kernel_efficient_cpu,
    reconstruct_indices_from_tree_mask,
    verify_tree_greedy_cpu,
)
from torch import Tensor

# The first call into torch takes long on a busy machine.
patient = settings(deadline=None)


@dataclass(eq=False)
class Node:
    parent: "Node | None"
    candidate: int  # number through the draft steps, as the host counts; -1 for the root
    score: int
    token: int
    children: list["Node"] = field(default_factory=list)

    def lineage(self) -> list["Node"]:
        """The node, its parent and so on up to the root."""
        return [self, *(self.parent.lineage() if self.parent else [])]


@dataclass
class Draft:
    """One request's drafting as EAGLE does it, and the slots that verification will use."""

    seq_len: int
    slots: list[Node]  # the root, then the selected candidates in the order of their numbers
    parent_list: list[int]

    @property
    def selected(self) -> list[int]:
        return [node.candidate for node in self.slots[1:]]


def draft_tree(seq_len: int, topk: int, num_steps: int, num_draft_tokens: int, rng) -> Draft:
    """Grows topk children under each of the topk best nodes, step by step."""
    root = Node(None, -1, 10**9, 0)
    everyone: list[Node] = []
    beams, parent_list = [root], [-1]
    for step in range(num_steps):
        level = []
        for beam in beams:
            for _ in range(topk):
                # A child scores less than its parent, and scores are all different.
                score = beam.score - rng.randint(1, 1000) * 1000 - len(everyone) - len(level)
                node = Node(beam, len(everyone) + len(level), score, rng.randint(0, 3))
                level.append(node)
        everyone += level
        beams = sorted(level, key=lambda node: -node.score)[:topk]
        if step < num_steps - 1:
            parent_list += [node.candidate for node in beams]
    best = sorted(everyone, key=lambda node: -node.score)[: num_draft_tokens - 1]
    slots = [root, *sorted(best, key=lambda node: node.candidate)]
    for node in slots[1:]:
        node.parent.children.append(node)
    return Draft(seq_len, slots, parent_list)


@st.composite
def batches(draw):
    topk, num_steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    most = topk + (num_steps - 1) * topk * topk
    num_draft_tokens = 1 + draw(st.integers(1, most))
    rng = draw(st.randoms(use_true_random=False))
    seq_lens = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    drafts = [draft_tree(n, topk, num_steps, num_draft_tokens, rng) for n in seq_lens]
    return drafts, topk, num_steps, num_draft_tokens, rng


def build(drafts: list[Draft], topk: int, num_steps: int, n: int, mode: int) -> dict[str, Tensor]:
    """Calls the function under test with buffers filled as the host fills them."""
    bs = len(drafts)
    lens = [draft.seq_len for draft in drafts]
    size = bs * n * n if mode == QLEN_ONLY else sum(n * (length + n) for length in lens)
    out = {
        "tree_mask": torch.full((size,), True),
        "positions": torch.empty(bs * n, dtype=torch.long),
        "retrieve_index": torch.full((bs, n), -1),
        "retrieve_next_token": torch.full((bs, n), -1),
        "retrieve_next_sibling": torch.full((bs, n), -1),
    }
    build_tree_kernel_efficient_cpu(
        torch.tensor([draft.parent_list for draft in drafts]),
        torch.tensor([draft.selected for draft in drafts]),
        torch.tensor(lens),
        *out.values(),
        topk,
        num_steps,
        n,
        mode,
    )
    return out


@patient
@given(batches(), st.sampled_from([FULL_MASK, QLEN_ONLY]))
def test_mask_positions_and_links_are_those_of_the_drafted_tree(batch, mode):
    drafts, topk, num_steps, n, _ = batch
    out = build(drafts, topk, num_steps, n, mode)
    rows = iter(out["tree_mask"].tolist())
    for b, draft in enumerate(drafts):
        slot_of = {node: slot for slot, node in enumerate(draft.slots)}
        for slot, node in enumerate(draft.slots):
            prefix = [] if mode == QLEN_ONLY else [True] * draft.seq_len
            seen = [other in node.lineage() for other in draft.slots]
            assert [next(rows) for _ in prefix + seen] == prefix + seen
            depth = len(node.lineage()) - 1
            assert out["positions"][b * n + slot] == draft.seq_len + depth
            assert out["retrieve_index"][b, slot] == b * n + slot
            assert children_of(out, b, slot) == [slot_of[child] for child in node.children]
    assert next(rows, None) is None


def children_of(out: dict[str, Tensor], b: int, slot: int) -> list[int]:
    """Follows the links as the verification does."""
    found, child = [], int(out["retrieve_next_token"][b, slot])
    while child != -1:
        found.append(child)
        child = int(out["retrieve_next_sibling"][b, child])
    return found


def test_a_selected_node_whose_parent_was_not_selected_is_left_unreachable():
    # topk 2, 2 steps: candidate 2 continues candidate 0, which lost a tie of equal scores.
    root = Node(None, -1, 0, 0)
    draft = Draft(5, [root, Node(root, 1, 0, 0), Node(None, 2, 0, 0)], [-1, 0, 1])
    out = build([draft], 2, 2, 3, QLEN_ONLY)
    assert out["retrieve_next_token"].tolist() == [[1, -1, -1]]
    assert out["retrieve_next_sibling"].tolist() == [[-1, -1, -1]]
    assert out["tree_mask"].view(3, 3).tolist() == [[True, False, False], [True, True, False],
                                                    [True, False, True]]  # fmt: skip


@patient
@given(batches())
def test_greedy_verification_accepts_the_longest_path_of_the_targets_own_tokens(batch):
    drafts, topk, num_steps, n, rng = batch
    bs = len(drafts)
    out = build(drafts, topk, num_steps, n, QLEN_ONLY)
    target = [[rng.randint(0, 3) for _ in range(n)] for _ in range(bs)]
    predicts = torch.full((bs * n,), -7)
    accept_index = torch.full((bs, num_steps + 1), -1, dtype=torch.int32)
    num_correct_drafts = torch.empty(bs, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=num_correct_drafts,
        candidates=torch.tensor([[node.token for node in draft.slots] for draft in drafts]),
        retrive_index=out["retrieve_index"],
        retrive_next_token=out["retrieve_next_token"],
        retrive_next_sibling=out["retrieve_next_sibling"],
        target_predict=torch.tensor(target),
    )
    for b, draft in enumerate(drafts):
        path = greedy_path(draft, target[b])
        slots = [draft.slots.index(node) for node in path]
        assert num_correct_drafts[b] == len(path) - 1
        padding = [-1] * (num_steps + 1 - len(path))
        assert accept_index[b].tolist() == [b * n + slot for slot in slots] + padding
        for slot in range(n):
            assert predicts[b * n + slot] == (target[b][slot] if slot in slots else -7)


def greedy_path(draft: Draft, target: list[int]) -> list[Node]:
    """The nodes from the root along which each holds the target's token after its parent."""
    path = [draft.slots[0]]
    while True:
        wanted = target[draft.slots.index(path[-1])]
        matches = [child for child in path[-1].children if child.token == wanted]
        if not matches:
            return path
        path.append(matches[0])


@patient
@given(st.lists(st.lists(st.integers(0, 6), min_size=6, max_size=6), min_size=1, max_size=3))
def test_links_of_an_ngram_tree_follow_from_who_is_whose_ancestor(drawn: list[list[int]]) -> None:
    """As the host states it (sglang 0.5.23 kernels/ops/speculative/reconstruct_tree.py)."""
    bs, n = len(drawn), 7
    parents = [[-1, *(row[slot] % (slot + 1) for slot in range(n - 1))] for row in drawn]
    mask = torch.zeros((bs, n, n), dtype=torch.bool)
    for b, row in enumerate(parents):
        for slot in range(n):
            ancestor = slot
            while ancestor >= 0:
                mask[b, slot, ancestor] = True
                ancestor = row[ancestor]
    lens = torch.arange(bs) * 10 + 3
    positions = torch.zeros(bs * n, dtype=torch.int64)
    index, child, sibling = (torch.zeros((bs, n), dtype=torch.int64) for _ in range(3))
    reconstruct_indices_from_tree_mask(
        mask.flatten(), lens, positions, index, child, sibling, bs, n
    )
    assert index.flatten().tolist() == list(range(bs * n))
    for b, row in enumerate(parents):
        for slot in range(n):
            depth = int(mask[b, slot].sum()) - 1
            assert positions[b * n + slot] == lens[b] + depth
            children = [k for k in range(n) if row[k] == slot]
            assert child[b, slot] == (children[0] if children else -1)
            later = [k for k in range(slot + 1, n) if row[k] == row[slot] >= 0]
            assert sibling[b, slot] == (later[0] if later else -1)
