"""`pin`: keeps a running server at one tier, or lets it adapt again."""

import argparse
from typing import Any

from sglang_adaptive_spec.cli.parsing import add_json, add_keys, add_verb, print_json
from sglang_adaptive_spec.operate.server import pin


def add_to(verbs: Any) -> None:
    """Adds the verb."""
    verb = add_verb(
        verbs,
        "pin",
        "Can the server stay at one depth for a while?",
        "sglang-adaptive-spec pin http://127.0.0.1:30000 3      # auto: adapt again",
        run,
    )
    verb.add_argument("server", metavar="URL", help="a server of ADAPTIVE_EAGLE")
    verb.add_argument(
        "tier", metavar="TIER|auto", help="as /server_info calls it, such as 3 or 3-4-8"
    )
    add_keys(verb)
    add_json(verb)


def run(arguments: argparse.Namespace) -> int:
    """Pins, and says what holds afterwards."""
    states = pin(arguments.server, arguments.tier, arguments.api_key, arguments.admin_api_key)
    is_free = arguments.tier == "auto"
    if arguments.json:
        pinned = None if is_free else arguments.tier
        print_json({"server": arguments.server, "replicas": len(states), "pinned": pinned})
        return 0
    now = "adapts" if is_free else f"is pinned to {arguments.tier}; `auto` lets it adapt again"
    replicas = f", {len(states)} replicas" if len(states) > 1 else ""
    print(f"{arguments.server}{replicas} {now}")
    return 0
