"""The benchmark of rows times what the worker asks, and recomputes what it says."""

from benchmarks.studies import rows


def sizes(us: float) -> list[dict[str, object]]:
    return [{"batch_size": 128, "context_us": [us, us, 100.0], "keys_us": [1.0, 2.0, 3.0]}]


def test_a_stalled_window_does_not_count_and_the_limit_is_judged() -> None:
    result = rows.build_result({}, sizes(4.0))
    assert result["us_per_round"] == {"128": {"context_us": 4.0, "keys_us": 2.0}}
    assert rows.check_rows(result) == []
    assert rows.size_table(result).endswith(": met")
    assert rows.size_table(rows.build_result({}, sizes(10.5))).endswith(": MISSED")
    assert rows.check_rows({**result, "us_per_round": {}}) == ["us_per_round is not what raw gives"]


def test_what_is_timed_tells_rows_apart_and_counts_their_tokens() -> None:
    batch = rows.batch_of(3)
    assert rows.context_lengths(batch) == [1001, 1002, 1003]
    before = set(rows.row_keys(batch))
    assert len(before) == 3
    batch.req_to_token_pool.req_generation += 1  # the rows were given away again
    assert before.isdisjoint(rows.row_keys(batch))
