"""Asks a server."""

import json
import urllib.request
from collections.abc import Mapping
from typing import Any


def post_json(url: str, body: Mapping[str, Any], timeout_s: float) -> Any:
    """Returns the JSON that a POST is answered with."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return json.load(response)
