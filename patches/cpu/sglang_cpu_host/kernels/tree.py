"""Draft trees: building EAGLE's for verification, reading NGRAM's, and greedy verification.

A tree has num_draft_tokens slots; slot 0 is the root (the bonus token of the last round), slot
i > 0 holds the candidate selected_index[i - 1]. Candidates are numbered through the draft steps:
candidate c was proposed by beam c // topk; beam 0 is the root, and parent_list[beam] is the
candidate that beam continues (sglang 0.5.21 speculative/eagle_utils.py:organize_draft_results).
"""

from __future__ import annotations

import torch
from torch import Tensor

FULL_MASK, QLEN_ONLY = 0, 1  # sglang 0.5.21 speculative/eagle_utils.py:TreeMaskMode
NONE = -1


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,  # [bs, num_beams]
    selected_index: Tensor,  # [bs, num_draft_tokens - 1]
    seq_lens: Tensor,  # [bs] prefix lengths
    tree_mask: Tensor,  # flat bool, written; the caller filled the prefix columns with True
    positions: Tensor,  # [bs * num_draft_tokens], written
    retrieve_index: Tensor,  # [bs, num_draft_tokens], written
    retrieve_next_token: Tensor,  # [bs, num_draft_tokens], written: first child
    retrieve_next_sibling: Tensor,  # [bs, num_draft_tokens], written: next sibling
    topk: int,
    depth: int,
    num_draft_tokens: int,
    tree_mask_mode: int,
) -> None:
    """Writes mask, positions and child links of every request's tree."""
    mode = int(tree_mask_mode)
    if mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"sglang-cpu-host: tree mask mode {mode}; only 0 and 1 exist.")
    flat_mask = tree_mask.view(-1)
    n, done = num_draft_tokens, 0
    for b, seq_len in enumerate(seq_lens.tolist()):
        parents = _parents(parent_list[b].tolist(), selected_index[b].tolist(), topk, n)
        first_child, next_sibling = _links(parents)
        ancestors = _ancestors(parents)
        width = n if mode == QLEN_ONLY else seq_len + n
        mask = flat_mask[done : done + n * width].view(n, width)
        mask[:, width - n :] = ancestors.to(mask.dtype)
        done += n * width
        # The root is everyone's ancestor, so a slot's depth is its ancestors without the root.
        depths = ancestors[:, 1:].sum(1)
        positions[b * n : (b + 1) * n] = (seq_len + depths).to(positions.dtype)
        retrieve_index[b] = torch.arange(b * n, b * n + n)
        retrieve_next_token[b] = torch.tensor(first_child)
        retrieve_next_sibling[b] = torch.tensor(next_sibling)


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,  # [bs * num_draft_tokens * num_draft_tokens] bool: who is whose ancestor
    verified_seq_len: Tensor,  # [bs] prefix lengths
    positions: Tensor,  # [bs * num_draft_tokens], written
    retrive_index: Tensor,  # [bs, num_draft_tokens], written (the host's spelling)
    retrive_next_token: Tensor,  # [bs, num_draft_tokens], written: first child
    retrive_next_sibling: Tensor,  # [bs, num_draft_tokens], written: next sibling
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Writes positions and child links of trees that NGRAM's corpus numbered, parents first."""
    n = draft_token_num
    ancestors = tree_mask.view(batch_size, n, n).bool().tril(-1)  # without the slot itself
    depths = ancestors.sum(-1)
    positions.copy_((verified_seq_len[:, None] + depths).flatten())
    retrive_index.copy_(torch.arange(batch_size * n).view(batch_size, n))
    slots = torch.arange(n)
    parents = torch.where(ancestors, slots, NONE).amax(-1)  # the nearest one is the last
    for b, row in enumerate(parents.tolist()):
        first_child, next_sibling = _links(row)
        retrive_next_token[b] = torch.tensor(first_child)
        retrive_next_sibling[b] = torch.tensor(next_sibling)


def _parents(parent_list: list[int], selected: list[int], topk: int, n: int) -> list[int]:
    """Parent slot of each slot; NONE for the root and for a slot whose parent was not selected.

    The latter happens when a parent and its child tie and the top-k takes the child.
    """
    slot_of = {candidate: slot for slot, candidate in enumerate(selected[: n - 1], start=1)}
    parents = [NONE]
    for candidate in selected[: n - 1]:
        beam = candidate // topk
        parents.append(0 if beam == 0 else slot_of.get(parent_list[beam], NONE))
    return parents


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of each slot, children in slot order."""
    first_child, next_sibling = [NONE] * len(parents), [NONE] * len(parents)
    for slot in range(len(parents) - 1, 0, -1):
        if parents[slot] == NONE:
            continue
        next_sibling[slot] = first_child[parents[slot]]
        first_child[parents[slot]] = slot
    return first_child, next_sibling


def _ancestors(parents: list[int]) -> Tensor:
    """[n, n] bool: row i has True at the root, at i and at everything between."""
    rows = torch.zeros((len(parents), len(parents)), dtype=torch.bool)
    rows[:, 0] = True
    for slot in range(1, len(parents)):
        ancestor = slot
        while ancestor > 0:
            rows[slot, ancestor] = True
            ancestor = parents[ancestor]
    return rows


def verify_tree_greedy_cpu(
    predicts: Tensor,  # [bs * num_draft_tokens], written
    accept_index: Tensor,  # [bs, num_steps + 1], written; the caller filled it with -1
    accept_token_num: Tensor,  # [bs], written: num_correct_drafts
    candidates: Tensor,  # [bs, num_draft_tokens] token ids
    retrive_index: Tensor,  # [bs, num_draft_tokens] (the host's spelling)
    retrive_next_token: Tensor,  # [bs, num_draft_tokens]
    retrive_next_sibling: Tensor,  # [bs, num_draft_tokens]
    target_predict: Tensor,  # [bs, num_draft_tokens] the target's token after each slot
) -> None:
    """Follows the target's own tokens down each tree, as far as the drafts hold them."""
    target_tokens = target_predict.reshape(-1).tolist()
    requests = zip(
        candidates.tolist(),
        retrive_index.tolist(),
        retrive_next_token.tolist(),
        retrive_next_sibling.tolist(),
        strict=True,
    )
    for b, (tokens, index, first_child, next_sibling) in enumerate(requests):
        path, slot = [index[0]], 0
        while len(path) < accept_index.shape[1]:
            slot = first_child[slot]
            while slot != NONE and tokens[slot] != target_tokens[path[-1]]:
                slot = next_sibling[slot]
            if slot == NONE:
                break
            path.append(index[slot])
        accept_index[b, : len(path)] = torch.tensor(path, dtype=accept_index.dtype)
        accept_token_num[b] = len(path) - 1
        for place in path:
            predicts[place] = target_tokens[place]
