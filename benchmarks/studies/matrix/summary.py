"""From the runs of a matrix to its cells: one function, used to write and to verify."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.stats.provenance import check_same_code
from benchmarks.stats.windows import MATRIX_ARMS, WINDOW_KEYS, build_cell

Raw = Mapping[str, Any]


def merged(records: Sequence[Raw], is_incomplete: bool = False) -> dict[str, Any]:
    """Returns the result of several runs of the same code on the same machine kind.

    ``is_incomplete`` keeps cells that lack an arm; `make verify-results` names and refuses them.

    Raises:
        ValueError: Two runs differ in code, host or GPU, or a cell lacks an arm that others have.
    """
    by_cell: dict[tuple[int, str], dict[str, list[Raw]]] = {}
    for record in sorted(records, key=lambda record: str(record["provenance"]["date"])):
        for window in record["windows"]:
            cell = by_cell.setdefault((window["batch_size"], window["acceptance"]), {})
            kept = {key: window[key] for key in WINDOW_KEYS}
            cell.setdefault(window["arm"], []).append(kept)
    if not is_incomplete:
        check_arms(by_cell)
    servers = [server for record in records for server in record["servers"]]
    cells = [
        build_cell(batch_size, acceptance, _in_order(by_cell[batch_size, acceptance]))
        for batch_size, acceptance in sorted(by_cell)
    ]
    return {"provenance": check_same_code(records), "cells": cells, "servers": servers}


def check_arms(by_cell: Mapping[tuple[int, str], Mapping[str, Any]]) -> None:
    """Refuses cells without an arm.

    Raises:
        ValueError: A cell lacks an arm that others have.
    """
    wanted = set().union(*by_cell.values())
    for where, cell in by_cell.items():
        if set(cell) != wanted:
            raise ValueError(f"cell {where} lacks {sorted(wanted - set(cell))}: run them.")


def _in_order(arms: Mapping[str, list[Raw]]) -> dict[str, list[Raw]]:
    others = sorted(set(arms) - set(MATRIX_ARMS))
    return {name: arms[name] for name in (*MATRIX_ARMS, *others) if name in arms}
