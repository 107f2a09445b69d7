"""NGRAM's corpus: what followed n-grams before, looked up by the newest tokens.

The host compiles its own when a server starts (sglang 0.5.20 to 0.5.23
kernels/ops/speculative/ngram_corpus.py), which takes a compiler and a minute. This one has its
interface, its trees by recency (kernels/jit/csrc/ngram_corpus/trie.cpp:buildRecency), its numbering
(result.cpp:fillResult) and its padding (token 0, a child of the root). It knows no frequencies and
no external corpora.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PADDING = 0
Trie = dict[int, "Trie"]  # by the next token, the newest last


class NgramCorpus:
    """A trie of the n-grams seen so far."""

    def __init__(
        self,
        *,
        max_trie_depth: int,
        min_bfs_breadth: int,
        max_bfs_breadth: int,
        draft_token_num: int,
        **_: Any,
    ) -> None:
        self._depth, self._breadth = max_trie_depth, min_bfs_breadth
        self._breadth_per_level = (max_bfs_breadth - min_bfs_breadth) / max(1, max_trie_depth - 1)
        self._num_nodes = draft_token_num  # of a tree, the root included
        self._root: Trie = {}

    def insert(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Takes some sequences, each n-gram of each."""
        for tokens in batch_tokens:
            for start in range(len(tokens)):
                node = self._root
                for token in tokens[start : start + self._depth]:
                    node[token] = node = node.pop(token, {})  # the newest last

    def synchronize(self) -> None:
        """Has nothing to wait for."""

    def reset(self) -> None:
        """Forgets everything."""
        self._root = {}

    def match_stateful(
        self,
        _state_ids: Sequence[int],
        batch_tokens: Sequence[Sequence[int]],
        _total_lens: Sequence[int],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the trees of some requests: tokens [bs * nodes], ancestors [bs * nodes * nodes].

        Args:
            batch_tokens: the newest of each request.
        """
        tokens, masks = [], []
        for newest in batch_tokens:
            drafts, parents = self._tree(newest)
            tokens.append([newest[-1], *drafts])
            masks.append(_ancestors(parents))
        return np.concatenate(tokens).astype(np.int64), np.concatenate(masks, axis=None)

    def erase_states(self, _state_ids: Sequence[int]) -> None:
        """Keeps none."""

    def list_corpora(self) -> dict[str, int]:
        """Has no external ones."""
        return {}

    def _tree(self, newest: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the drafts behind the root and the parents of all nodes, level by level.

        Of siblings the one that was put last is numbered first, which is how the host's hash map
        walks them: the best one is the last.
        """
        drafts, parents, queue = list[int](), [-1], deque([(0, self._chosen(newest))])
        while queue:
            parent, children = queue.popleft()
            for token in reversed(children):
                queue.append((len(parents), children[token]))
                drafts.append(token)
                parents.append(parent)
        num_missing = self._num_nodes - len(parents)
        return drafts + [PADDING] * num_missing, parents + [0] * num_missing

    def _chosen(self, newest: Sequence[int]) -> Trie:
        """Returns the children of the root, best first, and theirs.

        Long matches say best what follows and get few branches, short ones say more of it.
        """
        tree: Trie = {}
        num_nodes = 1
        for level, match in self._matches(newest):
            queue = deque([(tree, match, self._breadth + level * self._breadth_per_level)])
            while queue:
                children, node, breadth = queue.popleft()
                for token in list(reversed(node))[: max(1, int(breadth))]:
                    if num_nodes == self._num_nodes and token not in children:
                        return tree
                    num_nodes += token not in children
                    child = children.setdefault(token, {})
                    queue.append((child, node[token], breadth - self._breadth_per_level))
        return tree

    def _matches(self, newest: Sequence[int]) -> Iterator[tuple[int, Trie]]:
        """Yields what followed the ends of ``newest``, of the longest one first.

        With each comes how many tokens shorter it is than the longest that could be.
        """
        longest = self._depth - 1
        for length in range(min(longest, len(newest)), 0, -1):
            node: Trie | None = self._root
            for token in newest[len(newest) - length :]:
                node = node.get(token) if node else None
            if node:
                yield longest - length, node


def _ancestors(parents: Sequence[int]) -> NDArray[np.int64]:
    """Returns [nodes, nodes]: each node's ancestors, itself included."""
    rows = np.eye(len(parents), dtype=np.int64)
    for node, parent in enumerate(parents):
        if parent >= 0:
            rows[node, : parent + 1] |= rows[parent, : parent + 1]
    return rows
