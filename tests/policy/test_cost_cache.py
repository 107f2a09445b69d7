"""The cost file: found again under its own key, never used under any other, never in the way."""

import json
import logging
import os
from pathlib import Path

import msgspec
import pytest

from sglang_adaptive_spec.policy.costs import cache
from sglang_adaptive_spec.policy.costs.cache import CostKey, cost_file, default_folder, load, save
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.tiers import PLAIN_TIER, Plan, RoundTime, Tier, chain_tier

TIERS = (PLAIN_TIER, chain_tier(3))
KEY = CostKey(
    gpu="NVIDIA H200",
    model="org/target@1",
    draft="org/draft@1",
    versions={"sglang": "0.5.23", "sglang-adaptive-spec": "0.2.0"},
    settings={"dtype": "bfloat16", "quantization": "None", "tp_size": "1"},
    tiers=tuple((tier.num_steps, tier.topk, tier.num_draft_tokens) for tier in TIERS),
    buckets=(1, 2, 4, 8),
)
OTHER_VALUES = {
    "gpu": "NVIDIA H100",
    "model": "org/target@2",
    "draft": "",
    "versions": {"sglang": "0.5.23", "sglang-adaptive-spec": "0.2.1"},
    "settings": {"dtype": "bfloat16", "quantization": "fp8", "tp_size": "1"},
    "tiers": ((0, 1, 1), (5, 1, 6)),
    "buckets": (1, 2, 4),
    "longest_contexts": (16384, 512),
}


def seeded_table(tiers: tuple[Tier, ...] = TIERS) -> CostTable:
    table = CostTable.empty(tiers, KEY.buckets)
    for tier in tiers:
        for batch_size in (1, 8):
            table.seed(tier, batch_size, 100, 5.0 + tier.num_steps + 0.1 * batch_size)
    table.fit()
    return table


def store(folder: Path, **changes: object) -> Path:
    """Stores a table under `KEY`, then changes fields of the file."""
    assert save(KEY, seeded_table(), folder)
    path = cost_file(KEY, folder)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | changes))
    return path


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_stored_table_predicts_the_same(tmp_path: Path) -> None:
    table = seeded_table()
    assert save(KEY, table, tmp_path / "not" / "there")
    loaded = load(KEY, tmp_path / "not" / "there")
    assert loaded is not None
    assert loaded.to_dict() == table.to_dict()
    assert loaded.round_ms(TIERS[1], 5, 900) == table.round_ms(TIERS[1], 5, 900)


def test_the_drift_of_the_last_process_is_not_taken_over(tmp_path: Path) -> None:
    table = seeded_table()
    alone_ms = table.round_ms(TIERS[1], 8, 100)
    for factor in [1.0] * 200 + [1.5] * 100:
        table.observe(RoundTime(Plan(TIERS[1]), 8, 100, factor * alone_ms))
    assert table.drift == pytest.approx(1.5, rel=0.02)
    save(KEY, table, tmp_path)
    loaded = load(KEY, tmp_path)
    assert loaded is not None
    assert loaded.drift == 1.0
    assert loaded.round_ms(TIERS[1], 8, 100) == pytest.approx(alone_ms, rel=0.02)


def test_there_is_a_case_for_every_field_of_the_key() -> None:
    assert set(OTHER_VALUES) == set(CostKey.__struct_fields__)


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_another_key_finds_nothing(field: str, tmp_path: Path, caplog) -> None:
    save(KEY, seeded_table(), tmp_path)
    other = msgspec.structs.replace(KEY, **{field: OTHER_VALUES[field]})
    assert load(other, tmp_path) is None
    assert warnings_of(caplog) == []  # nothing is wrong: that server never ran before


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_a_file_moved_to_another_keys_name_is_refused(field: str, tmp_path: Path, caplog) -> None:
    path = store(tmp_path)
    other = msgspec.structs.replace(KEY, **{field: OTHER_VALUES[field]})
    path.rename(cost_file(other, tmp_path))
    assert load(other, tmp_path) is None
    (warning,) = warnings_of(caplog)
    assert str(cost_file(other, tmp_path)) in warning
    assert "another key" in warning


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"format_version": "1"}', b'{"format_version": 1}'],
    ids=repr,
)
def test_a_corrupt_file_is_ignored_with_one_warning(text: bytes, tmp_path: Path, caplog) -> None:
    path = store(tmp_path)
    path.write_bytes(text)
    assert load(KEY, tmp_path) is None
    (warning,) = warnings_of(caplog)
    assert str(path) in warning


def test_a_file_cut_off_anywhere_is_ignored(tmp_path: Path) -> None:
    path = store(tmp_path)
    text = path.read_bytes()
    for length in range(0, len(text), 97):
        path.write_bytes(text[:length])
        assert load(KEY, tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format_version": cache.FORMAT_VERSION + 1}, "format version"),
        # Fields of a later version do not hide which version it is.
        ({"format_version": 99, "later": 1}, "format version is 99"),
        ({"later": 1}, "later"),
        ({"costs": {}}, "cannot be read"),
        ({"costs": seeded_table((PLAIN_TIER, chain_tier(5))).to_dict()}, "other tiers"),
    ],
)
def test_what_does_not_fit_is_ignored_and_named(changes, said, tmp_path: Path, caplog) -> None:
    store(tmp_path, **changes)
    assert load(KEY, tmp_path) is None
    (warning,) = warnings_of(caplog)
    assert said in warning


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    document = json.loads(store(tmp_path).read_text())
    assert document["format_version"] == cache.FORMAT_VERSION
    assert document["key"]["gpu"] == "NVIDIA H200"
    assert document["date"].endswith("+00:00")


def test_saving_again_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    save(KEY, seeded_table(), tmp_path)
    table = seeded_table()
    table.seed(TIERS[1], 8, 100, 500.0)
    table.fit()
    save(KEY, table, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [cost_file(KEY, tmp_path).name]
    loaded = load(KEY, tmp_path)
    assert loaded is not None
    assert loaded.round_ms(TIERS[1], 8, 100) > 100


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path, caplog) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not save(KEY, seeded_table(), tmp_path / "file" / "folder")
    (warning,) = warnings_of(caplog)
    assert str(tmp_path / "file") in warning
    assert "XDG_CACHE_HOME" in warning


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_beside(
    tmp_path: Path, caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store(tmp_path)
    before = path.read_bytes()

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    assert not save(KEY, seeded_table(), tmp_path)
    assert [other.name for other in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize(
    ("xdg", "parent"),
    [("/var/cache/user", "/var/cache/user"), ("", "/home/u/.cache"), ("rel", "/home/u/.cache")],
)
def test_the_default_folder_is_the_users_cache(
    xdg: str, parent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", "/home/u")
    assert default_folder() == Path(parent) / "sglang-adaptive-spec"


def test_without_the_variable_the_folder_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    assert default_folder() == Path("/home/u/.cache/sglang-adaptive-spec")


def test_a_user_without_a_home_keeps_nothing_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])  # KeyError, as without an entry
    folder = default_folder()
    assert folder is None
    (warning,) = warnings_of(caplog)
    assert "XDG_CACHE_HOME" in warning
    assert load(KEY, folder) is None
    assert not save(KEY, seeded_table(), folder)
