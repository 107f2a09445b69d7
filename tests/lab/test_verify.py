"""A result is refused when a figure, its shape or the code behind it is not what it claims."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import verify
from benchmarks.stats.differences import Gap
from benchmarks.stats.provenance import CODE, code_sha256, code_sha256_at, git, without_folders
from benchmarks.stats.result_file import write_result
from benchmarks.verify import changed_since, check_file, check_provenance
from tests.lab.records import PROVENANCE

# Enough that git sees a moved file as that.
WORDS = '"""' + "A line that stays.\n" * 20 + '"""\n'


def test_a_file_without_a_check_is_refused() -> None:
    assert check_file("other.json", {}) == ["no check is written for other.json"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one committed source file of the package."""
    (tmp_path / CODE).mkdir()
    (tmp_path / CODE / "code.py").write_text("steps = 3\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(root: Path) -> str:
    """Commits everything in the repository; returns the commit."""
    git(root, "add", "--all")
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    git(root, *author, "commit", "--quiet", "--allow-empty", "--message", "test")
    return git(root, "rev-parse", "HEAD").strip()


def measured_at(root: Path) -> dict[str, Any]:
    """The provenance that a run in this checkout would have."""
    return {
        **PROVENANCE,
        "git_sha": git(root, "rev-parse", "HEAD").strip(),
        "code_sha256": code_sha256(root),
    }


def test_later_commits_elsewhere_keep_a_result_valid(checkout: Path) -> None:
    record = measured_at(checkout)
    (checkout / "README.md").write_text("words\n")
    (checkout / CODE / "notes.md").write_text("words\n")  # nothing that runs
    commit(checkout)
    assert check_provenance(record, checkout) == changed_since(record, checkout) == []


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("name", ["code.py", "new.py", "preset.json"])
def test_runtime_code_that_changed_since_is_named(
    checkout: Path, name: str, is_committed: bool
) -> None:
    record = measured_at(checkout)
    (checkout / CODE / name).write_text("steps = 5\n")
    if is_committed:
        commit(checkout)
    assert check_provenance(record, checkout) == []
    assert changed_since(record, checkout) == [name]


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ('"""Other words."""\nimport os\nsteps = 3  # as before\n', []),
        ("steps = 4\n", ["room/moved.py"]),
    ],
)
def test_a_file_that_moved_is_named_only_if_its_code_changed(
    checkout: Path, text: str, changed: list[str]
) -> None:
    code = checkout / CODE / "code.py"
    code.write_text(WORDS + "steps = 3\n")
    commit(checkout)
    record = measured_at(checkout)
    room = checkout / CODE / "room"
    room.mkdir()
    code.rename(room / "moved.py")
    (room / "moved.py").write_text(WORDS + text)
    (room / "__init__.py").write_text('"""A room."""\n')
    commit(checkout)
    assert changed_since(record, checkout) == changed


def test_a_run_of_uncommitted_code_is_found_out(checkout: Path) -> None:
    (checkout / CODE / "code.py").write_text("steps = 5\n")
    (problem,) = check_provenance(measured_at(checkout), checkout)
    assert problem.startswith("the code that ran is not the code at")


def test_a_commit_outside_the_history_counts_for_this_very_code_only(checkout: Path) -> None:
    record = {**measured_at(checkout), "git_sha": "0" * 40}
    assert check_provenance(record, checkout) == changed_since(record, checkout) == []
    (problem,) = check_provenance({**record, "code_sha256": "0" * 64}, checkout)
    assert "is no ancestor of HEAD" in problem


def test_missing_provenance_is_named(checkout: Path) -> None:
    record = measured_at(checkout)
    del record["gpu"], record["argv"]
    assert check_provenance(record, checkout) == ["provenance lacks ['argv', 'gpu']"]


def test_the_hash_of_a_commit_is_that_of_its_checkout(checkout: Path) -> None:
    assert code_sha256_at("HEAD", checkout) == code_sha256(checkout)


def test_a_recorded_command_names_no_folder_of_the_machine() -> None:
    given = ["/somewhere/slice.py", "run", "--out", "/a/b/out", "examples/x", "one=/a/b/text"]
    shown = without_folders(given)
    assert shown == ["slice.py", "run", "--out", "out", "examples/x", "one=text"]


def test_what_was_not_measured_is_said_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_result(tmp_path / "one.json.xz", {"provenance": PROVENANCE})
    problems: list[str] = [Gap("cells lacks ['a']")]
    check = verify.Check(lambda _result: problems, lambda _result: "the targets")
    monkeypatch.setattr(verify, "RESULTS", tmp_path)
    monkeypatch.setattr(verify, "ARCHIVE", tmp_path / "archive")
    monkeypatch.setattr(verify, "CHECKS", {"one.json.xz": check})
    monkeypatch.setattr(verify, "check_provenance", lambda _record: [])
    monkeypatch.setattr(verify, "changed_since", lambda _record: [])
    assert verify.main() == 0
    assert "not measured: cells lacks ['a']\nthe targets" in capsys.readouterr().out
    problems.append("a figure that raw does not give")
    assert verify.main() == 1
    assert "the targets" not in capsys.readouterr().out


def test_an_archived_result_is_not_recomputed_and_keeps_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    monkeypatch.setattr(verify, "RESULTS", tmp_path / "current")
    monkeypatch.setattr(verify, "CHECKS", {})
    monkeypatch.setattr(verify, "ARCHIVE", archive)
    path = archive / "of-a-script-that-is-gone.json.xz"
    record = {**PROVENANCE, "code_sha256": code_sha256()}
    write_result(path, {"provenance": record})
    assert verify.main() == 0
    assert "archive/of-a-script-that-is-gone.json.xz: ok" in capsys.readouterr().out
    plain = archive / "plain.json"
    write_result(plain, {"provenance": record})
    assert verify.main() == 1
    assert "not compressed: xz -9e plain.json" in capsys.readouterr().out
    plain.unlink()
    write_result(path, {})
    assert verify.main() == 1
    assert "provenance lacks" in capsys.readouterr().out


def test_a_result_that_is_gone_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = verify.Check(lambda _result: [], lambda _result: "the targets")
    monkeypatch.setattr(verify, "RESULTS", tmp_path)
    monkeypatch.setattr(verify, "ARCHIVE", tmp_path / "archive")
    monkeypatch.setattr(verify, "CHECKS", {"one.json.xz": check})
    assert verify.main() == 1
    assert "one.json.xz: wrong\n  missing" in capsys.readouterr().out
