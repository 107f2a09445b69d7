"""Every verb: a question, an example that parses, JSON, a sentence for a server it cannot use."""

import argparse
import json
import shlex
import socket
from typing import Any

import pytest

from sglang_adaptive_spec import cli
from sglang_adaptive_spec.cli import main
from tests.operate.fake_server import info, serving

NAMES = [each.__name__.rpartition(".")[2] for each in cli.VERBS]
# Of every verb that asks a server: its arguments, {} for the address.
ASKING = {
    "explain": ("--server", "{}"),
    "pin": ("{}", "3"),
    "report": ("{}",),
    "tune": ("{}",),
    "watch": ("{}", "--lines", "1"),
}
OLDER = {"version": "0.0.9", "mode": "adaptive", "policy": "goodput"}


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = cli.parser()
    (verbs,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    found: argparse.ArgumentParser = verbs.choices[name]
    return found


def test_help_is_a_table_of_questions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line.startswith("    ") and line.split()]
    asked = {name: question for name, question in rows if name in NAMES}
    assert list(asked) == NAMES
    assert all("?" in question for question in asked.values())


@pytest.mark.parametrize("name", ["check", "explain"])
def test_an_argument_that_is_none_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it may be a server's, with the way to say so."""
    with pytest.raises(SystemExit):
        main([name, "--model-path", "TARGET"])
    said = capsys.readouterr().err
    assert "unrecognized arguments: --model-path" in said
    assert ("follow `--`" in said) == (name == "check")


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_prints_json_and_shows_an_example_that_parses(name: str) -> None:
    verb = parser_of(name)
    assert "--json" in verb._option_string_actions
    assert verb.epilog is not None
    heading, example = verb.epilog.split("\n", 1)
    assert heading == "example:"
    program, *arguments = shlex.split(example, comments=True)
    assert program == "sglang-adaptive-spec"
    assert cli.parser().parse_args(arguments).verb == name


def told(capsys: pytest.CaptureFixture[str], name: str, url: str, *more: str) -> str:
    arguments = [each.format(url) for each in ASKING[name]]
    assert main([name, *arguments, *more]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert url in printed.err
    assert "; fix: " in printed.err
    return printed.err


@pytest.mark.parametrize("name", ASKING)
def test_where_nothing_listens_a_verb_says_so(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert "Connection refused" in told(capsys, name, url)
    assert "did not answer as an SGLang server" in told(capsys, name, "http://[half")


@pytest.mark.parametrize("name", ASKING)
def test_a_key_that_is_missing_or_wrong_is_told_apart(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(info(None), key="secret") as url:
        assert "wants a key (HTTP 401)" in told(capsys, name, url)
        assert "does not know this key" in told(capsys, name, url, "--api-key", "guess")
        assert "without ADAPTIVE_EAGLE" in told(capsys, name, url, "--api-key", "secret")


@pytest.mark.parametrize("name", ASKING)
def test_a_server_of_an_older_plugin_or_sglang_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(info(OLDER)) as url:
        assert "0.0.9" in told(capsys, name, url)
    with serving(info(OLDER), path="/get_server_info") as url:
        assert "answers HTTP 404 to /server_info" in told(capsys, name, url)


@pytest.mark.parametrize("answer", [[], {"internal_states": []}, {"internal_states": [1]}])
def test_what_is_no_sglang_server_is_said(answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(answer) as url:
        assert "its /server_info has no internal_states" in told(capsys, "watch", url)


def test_a_pin_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    state = {"mode": "adaptive", "rounds": {"0": 0, "3": 0}, "pinned": "3"}
    with serving(info(state, state), obey=lambda _: [True, True]) as url:
        assert main(["pin", url, "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"server": url, "replicas": 2, "pinned": "3"}
