"""NGRAM's corpus in Python: trees of what followed the newest tokens, numbered parents first."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_cpu_host.kernels.corpus import PADDING, NgramCorpus

NODES, DEPTH, BREADTH = 6, 8, 3


def corpus(*sequences: list[int]) -> NgramCorpus:
    made = NgramCorpus(
        max_trie_depth=DEPTH, max_bfs_breadth=BREADTH, draft_token_num=NODES, capacity=100
    )
    made.insert(sequences)
    return made


def tree(made: NgramCorpus, newest: list[int]) -> tuple[list[int], np.ndarray]:
    """One request's tokens, and who is whose ancestor, itself included."""
    tokens, mask = made.match_stateful([0], [newest], [len(newest)])
    return tokens.tolist(), mask.reshape(NODES, NODES)


def paths(tokens: list[int], mask: np.ndarray) -> set[tuple[int, ...]]:
    """What the nodes say, each behind its ancestors, without the root and without padding."""
    found = {tuple(tokens[place] for place in np.flatnonzero(row)[1:]) for row in mask}
    return {path for path in found if path and path != (PADDING,)}


def test_a_text_that_repeats_is_drafted_as_a_chain() -> None:
    tokens, mask = tree(corpus([1, 2, 3, 4, 5, 6, 7, 8, 9]), [1, 2, 3])
    assert tokens == [3, 4, 5, 6, 7, 8]
    assert (mask == np.tri(NODES)).all()


def test_the_longest_match_comes_first_and_shorter_ones_add_what_they_know() -> None:
    made = corpus([5, 1, 2, 7], [9, 2, 8])
    tokens, mask = tree(made, [5, 1, 2])
    assert tokens[:3] == [2, 7, 8]
    assert paths(tokens, mask) == {(7,), (8,)}


def test_the_newest_continuation_comes_first_and_no_more_than_the_breadth() -> None:
    made = corpus(*([1, token] for token in range(20, 26)))
    tokens, mask = tree(made, [1])
    assert tokens[:4] == [1, 25, 24, 23]
    assert paths(tokens, mask) == {(25,), (24,), (23,)}
    made.insert([[1, 20]])
    assert tree(made, [1])[0][1] == 20


def test_what_nothing_followed_is_padded_with_children_of_the_root() -> None:
    made = corpus([1, 2])
    for newest in ([2], [99]):
        tokens, mask = tree(made, newest)
        assert tokens == [newest[-1], *[PADDING] * (NODES - 1)]
        assert (mask[:, 0] == 1).all()
        assert (mask.sum(1)[1:] == 2).all()
    made.reset()
    assert tree(made, [1])[0][1:] == [PADDING] * (NODES - 1)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=20), max_size=4),
    st.lists(st.integers(1, 4), min_size=1, max_size=10),
)
def test_every_prefix_of_the_nodes_is_a_tree_and_says_what_was_seen(
    sequences: list[list[int]], newest: list[int]
) -> None:
    tokens, mask = tree(corpus(*sequences), newest)
    assert tokens[0] == newest[-1]
    assert (np.triu(mask, 1) == 0).all()  # parents stand before their children
    assert (np.diag(mask) == 1).all()
    seen = {
        tuple(sequence[start:end])
        for sequence in sequences
        for start in range(len(sequence))
        for end in range(start + 1, len(sequence) + 1)
    }
    assert all((newest[-1], *path) in seen for path in paths(tokens, mask))
    for size in range(1, NODES):  # a node's ancestors are whole
        for row in mask[:size]:
            inside = np.flatnonzero(row)
            nearest = inside[-2] if len(inside) > 1 else inside[-1]
            assert (mask[nearest, : nearest + 1] == row[: nearest + 1]).all()
