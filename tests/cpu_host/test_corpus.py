"""NGRAM's corpus in Python: the host's own trees of what followed the newest tokens."""

import importlib.util
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_cpu_host.kernels.corpus import PADDING, NgramCorpus

NODES, DEPTH, BREADTH = 6, 8, 3


def corpus(
    *sequences: list[int],
    depth: int = DEPTH,
    least: int = BREADTH,
    most: int = BREADTH,
    nodes: int = NODES,
) -> NgramCorpus:
    made = NgramCorpus(
        max_trie_depth=depth,
        min_bfs_breadth=least,
        max_bfs_breadth=most,
        draft_token_num=nodes,
        capacity=100,
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


def test_the_longest_match_is_numbered_last_and_shorter_ones_add_what_they_know() -> None:
    made = corpus([5, 1, 2, 7], [9, 2, 8])
    tokens, mask = tree(made, [5, 1, 2])
    assert tokens[:3] == [2, 8, 7]
    assert paths(tokens, mask) == {(7,), (8,)}


def test_the_newest_continuation_is_numbered_last_and_no_more_than_the_breadth() -> None:
    made = corpus(*([1, token] for token in range(20, 26)))
    tokens, mask = tree(made, [1])
    assert tokens[:4] == [1, 23, 24, 25]
    assert paths(tokens, mask) == {(25,), (24,), (23,)}
    made.insert([[1, 20]])
    assert tree(made, [1])[0][3] == 20


def host_trees(folder: Path, cases: list[list[int]]) -> list[list[int]]:
    """What the host's C++ answers to each case."""
    compiler, host = shutil.which("g++"), importlib.util.find_spec("sglang")
    if compiler is None or host is None or host.origin is None:
        pytest.skip("no C++ compiler, or no host to compile")
    source = Path(host.origin).parent / "kernels/jit/csrc/ngram_corpus"
    files = [
        Path(__file__).with_name("host_corpus.cpp"),
        source / "trie.cpp",
        source / "result.cpp",
    ]
    program = folder / "host_corpus"
    subprocess.run([compiler, "-std=c++20", f"-I{source}", *files, "-o", program], check=True)
    asked = "\n".join(" ".join(map(str, case)) for case in cases)
    done = subprocess.run([program], input=asked, capture_output=True, text=True, check=True)
    return [[int(number) for number in line.split()] for line in done.stdout.splitlines()]


def test_trees_are_those_of_the_host(tmp_path: Path) -> None:
    """With up to 12 tokens, of which no two share a bucket of its hash maps."""
    rng, cases, ours = random.Random(1), [], []
    for _ in range(300):
        depth, nodes, num_tokens = rng.randint(2, 8), rng.randint(2, 10), rng.randint(2, 12)
        least = rng.randint(1, 3)
        most = least + rng.randint(0, 5)
        sequences = [
            [rng.randrange(num_tokens) for _ in range(rng.randint(1, 20))]
            for _ in range(rng.randint(2, 5))
        ]
        numbers = [depth, least, most, nodes, len(sequences)]
        for sequence in sequences:
            numbers += [len(sequence), *sequence]
        cases.append(numbers)
        *written, newest = sequences
        made = corpus(*written, depth=depth, least=least, most=most, nodes=nodes)
        tokens, mask = made.match_stateful([0], [newest], [len(newest)])
        ours.append([*tokens.tolist(), *mask.tolist()])
    assert host_trees(tmp_path, cases) == ours


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
