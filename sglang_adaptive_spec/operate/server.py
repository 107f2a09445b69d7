"""Requests to a running server: the state of its ADAPTIVE_EAGLE, its minutes, and commands."""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sglang_adaptive_spec import __version__
from sglang_adaptive_spec.contract.versions import SUPPORTED
from sglang_adaptive_spec.loop.commands import PIN, SHOW_MINUTES

REQUEST_TIMEOUT_S = 10.0
PIN_TIMEOUT_S = 10.0  # replicas obey one after the other


class ServerError(ValueError):
    """A server that cannot give or do what is wanted: what was got, what is allowed, a fix."""


def server_states(url: str, api_key: str | None = None) -> list[dict[str, Any]]:
    """Returns the objects ``adaptive_spec`` of a server's /server_info, one a replica.

    Raises:
        ServerError: No such server answers there.
    """
    info = _request(url, "server_info", api_key)
    try:
        states = [dict(each).get("adaptive_spec") for each in info["internal_states"]]
    except (ValueError, LookupError, TypeError):
        states = []
    if not states:
        raise _unreachable(url, ValueError("its /server_info has no internal_states"))
    known = [state for state in states if isinstance(state, dict)]
    if len(known) < len(states):
        raise ServerError(
            f"{url} serves without ADAPTIVE_EAGLE; allowed: a server of "
            "--speculative-algorithm ADAPTIVE_EAGLE; fix: name one."
        )
    return known


def adaptive_states(url: str, api_key: str | None = None) -> list[dict[str, Any]]:
    """Returns `server_states` of a server that switches tiers.

    Raises:
        ServerError: As `server_states`, or its depth is static.
    """
    states = server_states(url, api_key)
    for state in states:
        if state.get("mode") != "adaptive":
            raise ServerError(
                f"{url} serves static {state.get('base')} ({state.get('reason')}); allowed: an "
                "adaptive server; fix: remove what rules out switching."
            )
    return states


def pin(
    url: str, wanted: str, api_key: str | None = None, admin_key: str | None = None
) -> list[dict[str, Any]]:
    """Keeps a server at a tier, or with ``auto`` lets it adapt; returns its states afterwards.

    A server with both keys takes commands with the second alone.

    Raises:
        ServerError: It has no such tier, does not obey, or is not an adaptive server.
    """
    states = adaptive_states(url, api_key)
    require(url, states, ("rounds", "pinned"))
    labels = tier_labels(states[0])
    if wanted != "auto" and wanted not in labels:
        raise ServerError(
            f"{url} has no tier {wanted}; allowed: auto, {', '.join(labels)}; fix: name one."
        )
    place = -1 if wanted == "auto" else labels.index(wanted)
    _send(url, states, {PIN: place}, admin_key or api_key)
    expected = None if wanted == "auto" else wanted
    deadline = time.monotonic() + PIN_TIMEOUT_S
    while True:
        states = adaptive_states(url, api_key)
        if all(state.get("pinned") == expected for state in states):
            return states
        if time.monotonic() > deadline:
            raise ServerError(
                f"{url} did not obey; allowed: a server of this plugin's version; fix: see its log."
            )
        time.sleep(0.1)


def minutes(
    url: str, most: int, api_key: str | None = None, admin_key: str | None = None
) -> list[list[dict[str, Any]]]:
    """Returns the newest minutes of every replica, oldest first (loop/minutes.py).

    Raises:
        ServerError: It is not an adaptive server, or one of an older plugin.
    """
    _send(url, adaptive_states(url, api_key), {SHOW_MINUTES: most}, admin_key or api_key)
    states = adaptive_states(url, api_key)
    if not all("minutes" in state for state in states):
        raise ServerError(
            f"{url} keeps no minutes; allowed: a server of this plugin's version; fix: upgrade it."
        )
    return [[json.loads(row) for row in state["minutes"]] for state in states]


def _send(
    url: str,
    states: Sequence[Mapping[str, Any]],
    commands: Mapping[str, float],
    key: str | None = None,
) -> None:
    """Sends commands to all ranks of a server that was in ``states``.

    Raises:
        ServerError: It does not answer, or does not obey.
    """
    answers = _request(url, "set_internal_state", key, {"server_args": dict(commands)})
    if not isinstance(answers, list) or not all(answer is True for answer in answers):
        raise ServerError(
            f"{url}, version {states[0].get('version')} of this plugin, refused {dict(commands)} "
            f"({answers}); allowed: a server of version {__version__}; fix: see its log, or "
            "upgrade the plugin there."
        )


def tier_labels(state: Mapping[str, Any]) -> list[str]:
    """Returns what the tiers of a server are called, in its order."""
    return list(state["rounds"])


def require(url: str, states: Iterable[Mapping[str, Any]], keys: Collection[str]) -> None:
    """Checks that a server tells what a verb asks for.

    Raises:
        ServerError: Its plugin is an older one, which tells less.
    """
    for state in states:
        missing = [key for key in keys if key not in state]
        if missing:
            raise ServerError(
                f"{url} runs version {state.get('version')} of this plugin, which does not tell "
                f"{', '.join(missing)}; allowed: version {__version__}; fix: upgrade the plugin "
                "there, or ask with the version that serves."
            )


def _request(
    url: str, route: str, api_key: str | None, body: Mapping[str, Any] | None = None
) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/{route}", data)
        request.add_header("Content-Type", "application/json")
        if api_key is not None:
            request.add_header("Authorization", f"Bearer {api_key}")
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refused(url, route, error.code, api_key, is_command=body is not None) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error


def _refused(url: str, route: str, code: int, api_key: str | None, is_command: bool) -> ServerError:
    """Words an HTTP error: a key that is missing or wrong, or a server that is another one."""
    if code in (401, 403):
        key = "--api-key, or --admin-api-key if the server has one" if is_command else "--api-key"
        got = "wants a key" if api_key is None else "does not know this key"
        fix = f"pass {key}" if api_key is None else f"pass the right one with {key}"
        return ServerError(f"{url} {got} (HTTP {code}); allowed: the server's own; fix: {fix}.")
    return ServerError(
        f"{url} answers HTTP {code} to /{route}; allowed: an SGLang server that this plugin serves "
        f"on ({SUPPORTED}); fix: correct the address, or upgrade SGLang there."
    )


def _unreachable(url: str, error: Exception) -> ServerError:
    reason = getattr(error, "reason", None) or error
    return ServerError(
        f"{url} did not answer as an SGLang server ({reason}); allowed: such as "
        "http://127.0.0.1:30000; fix: start the server, or correct the address."
    )
