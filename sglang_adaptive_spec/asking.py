"""Asks a running server what its ADAPTIVE_EAGLE does."""

import json
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_S = 10.0


class AskError(ValueError):
    """One sentence: what was got, what is allowed, a fix."""


def adaptive_states(url: str, api_key: str | None = None) -> list[dict[str, Any]]:
    """Returns the objects ``adaptive_spec`` of a server's /server_info, one a replica.

    Raises:
        AskError: Nobody answers there, or not as such a server does.
    """
    request = urllib.request.Request(f"{url.rstrip('/')}/server_info")
    if api_key is not None:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            info = json.load(answer)
        states = [dict(each).get("adaptive_spec") for each in info["internal_states"]]
        if not states:
            raise LookupError("no internal_states")
    except (OSError, ValueError, LookupError, TypeError) as error:
        is_locked = isinstance(error, urllib.error.HTTPError) and error.code in (401, 403)
        fix = "pass --api-key" if is_locked else "start the server, or correct the address"
        raise AskError(
            f"{url} did not answer as an SGLang server ({error}); allowed: such as "
            f"http://127.0.0.1:30000; fix: {fix}."
        ) from error
    known = [state for state in states if isinstance(state, dict)]
    if len(known) < len(states):
        raise AskError(
            f"{url} serves without ADAPTIVE_EAGLE; allowed: a server of "
            "--speculative-algorithm ADAPTIVE_EAGLE; fix: name one."
        )
    return known
