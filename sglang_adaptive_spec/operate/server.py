"""Asks a running server what its ADAPTIVE_EAGLE does, and tells it what to do."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from sglang_adaptive_spec.loop.commands import PIN, SHOW_MINUTES

TIMEOUT_S = 10.0
OBEYED_S = 10.0  # replicas obey one after the other


class AskError(ValueError):
    """One sentence: what was got, what is allowed, a fix."""


def adaptive_states(url: str, api_key: str | None = None) -> list[dict[str, Any]]:
    """Returns the objects ``adaptive_spec`` of a server's /server_info, one a replica.

    Raises:
        AskError: Nobody answers there, or not as such a server does.
    """
    info = _ask(url, "server_info", api_key)
    try:
        states = [dict(each).get("adaptive_spec") for each in info["internal_states"]]
        if not states:
            raise LookupError("no internal_states")
    except (ValueError, LookupError, TypeError) as error:
        raise _no_server(url, error) from error
    known = [state for state in states if isinstance(state, dict)]
    if len(known) < len(states):
        raise AskError(
            f"{url} serves without ADAPTIVE_EAGLE; allowed: a server of "
            "--speculative-algorithm ADAPTIVE_EAGLE; fix: name one."
        )
    return known


def serving_states(url: str, api_key: str | None = None) -> list[dict[str, Any]]:
    """Returns `adaptive_states` of a server that switches tiers.

    Raises:
        AskError: As `adaptive_states`, or it serves static EAGLE.
    """
    states = adaptive_states(url, api_key)
    for state in states:
        if state.get("mode") != "adaptive":
            raise AskError(
                f"{url} serves static EAGLE ({state.get('reason')}); allowed: an adaptive "
                "server; fix: remove what rules out switching."
            )
    return states


def pin(
    url: str, wanted: str, api_key: str | None = None, admin_key: str | None = None
) -> list[dict[str, Any]]:
    """Keeps a server at a tier, or with ``auto`` lets it adapt; returns its states afterwards.

    A server with both keys takes commands with the second alone.

    Raises:
        AskError: It has no such tier, does not obey, or is not an adaptive server.
    """
    labels = tier_labels(serving_states(url, api_key)[0])
    if wanted != "auto" and wanted not in labels:
        raise AskError(
            f"{url} has no tier {wanted}; allowed: auto, {', '.join(labels)}; fix: name one."
        )
    tell(url, {PIN: -1 if wanted == "auto" else labels.index(wanted)}, admin_key or api_key)
    expected = None if wanted == "auto" else wanted
    deadline = time.monotonic() + OBEYED_S
    while True:
        states = serving_states(url, api_key)
        if all(state.get("pinned") == expected for state in states):
            return states
        if time.monotonic() > deadline:
            raise AskError(
                f"{url} did not obey; allowed: a server of this plugin's version; fix: see its log."
            )
        time.sleep(0.1)


def minutes(
    url: str, most: int, api_key: str | None = None, admin_key: str | None = None
) -> list[list[dict[str, Any]]]:
    """Returns the newest minutes of every replica, oldest first (loop/minutes.py).

    Raises:
        AskError: It is not an adaptive server, or one of an older plugin.
    """
    serving_states(url, api_key)
    tell(url, {SHOW_MINUTES: most}, admin_key or api_key)
    states = serving_states(url, api_key)
    if not all("minutes" in state for state in states):
        raise AskError(
            f"{url} keeps no minutes; allowed: a server of this plugin's version; fix: upgrade it."
        )
    return [[json.loads(row) for row in state["minutes"]] for state in states]


def tell(url: str, commands: Mapping[str, float], key: str | None = None) -> None:
    """Sends commands to all ranks of a server.

    Raises:
        AskError: It does not answer, or does not obey.
    """
    answers = _ask(url, "set_internal_state", key, {"server_args": dict(commands)})
    if not isinstance(answers, list) or not all(answer is True for answer in answers):
        raise AskError(
            f"{url} refused {dict(commands)} ({answers}); allowed: an adaptive server of this "
            "plugin's version; fix: see its log."
        )


def tier_labels(state: Mapping[str, Any]) -> list[str]:
    """Returns what the tiers of a server are called, in its order."""
    return list(state["rounds"])


def _ask(url: str, route: str, api_key: str | None, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url.rstrip('/')}/{route}", data)
    request.add_header("Content-Type", "application/json")
    if api_key is not None:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise _no_server(url, error, is_command=body is not None) from error


def _no_server(url: str, error: Exception, is_command: bool = False) -> AskError:
    is_locked = isinstance(error, urllib.error.HTTPError) and error.code in (401, 403)
    key = "--api-key, or --admin-api-key if the server has both" if is_command else "--api-key"
    fix = f"pass {key}" if is_locked else "start the server, or correct the address"
    return AskError(
        f"{url} did not answer as an SGLang server ({error}); allowed: such as "
        f"http://127.0.0.1:30000; fix: {fix}."
    )
