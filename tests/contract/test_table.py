"""The table and the code agree: no host name stands in host/ unlisted, nothing is listed unused."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sglang_adaptive_spec.contract.cost_settings import COST_SETTINGS
from sglang_adaptive_spec.contract.flashinfer import PARTS, PLAN
from sglang_adaptive_spec.contract.table import CONTRACT, HOOK_TARGETS, Kind
from tests.contract.code import HOST_CODE, PACKAGE, imports, parsed
from tests.hosts import REPO

# The preset is generated from a constant in the host's source.
READERS = [REPO / "tools" / "write_contract.py"]
# Used by the host or by pickle on our behalf, not by our code.
IMPLIED = {
    "sglang.srt.arg_groups.fields.exec_.ExecFeatures._NS_PATH",
    "sglang.srt.arg_groups.fields.exec_.ExecGraph._NS_PATH",
    "sglang.srt.server_args.ServerArgs.__reduce__",
}
# Redefined, but not functions.
WORKER = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
PROPERTIES = {f"{WORKER}.last_shared_read_runner", f"{WORKER}.spec_v2_attn_backends"}

PATHS = {f"{symbol.module}.{name}" for symbol in CONTRACT for name in symbol.names}
DOTTED = re.compile(r"sglang(\.\w+)+")


def _texts(path: Path) -> set[str]:
    nodes = ast.walk(parsed(path))
    return {str(node.value) for node in nodes if isinstance(node, ast.Constant)}


def _hook_targets(path: Path) -> Iterator[str]:
    """Yields what a module hooks, or names by its path."""
    texts = _texts(path)
    yield from filter(DOTTED.fullmatch, texts)
    yield from (HOOK_TARGETS[name] for name in texts & HOOK_TARGETS.keys())


def test_every_entry_says_what_it_is_for_and_functions_have_signatures() -> None:
    for symbol in CONTRACT:
        assert symbol.why
        is_function = symbol.kind in (Kind.HOOK, Kind.OVERRIDE, Kind.CALL)
        is_function &= symbol.path not in PROPERTIES
        assert bool(symbol.signatures) == is_function, symbol.path


def test_every_host_name_that_the_code_imports_stands_in_the_table() -> None:
    modules = {symbol.module for symbol in CONTRACT}
    for path in HOST_CODE:
        names = {name for _, name in imports(parsed(path)) if DOTTED.fullmatch(name)}
        for name in names:
            listed = name in PATHS or any(entry.startswith(f"{name}.") for entry in PATHS)
            assert listed or name in modules, f"{path.name} uses {name}"


def test_every_path_in_a_string_is_a_hook_of_the_table_and_vice_versa() -> None:
    targets = {target for path in HOST_CODE for target in _hook_targets(path)}
    assert targets == set(HOOK_TARGETS.values())


def test_nothing_listed_is_unused() -> None:
    used = set(COST_SETTINGS)  # read by name
    for path in HOST_CODE + READERS:
        for node in ast.walk(parsed(path)):
            for name in ("attr", "id", "name", "arg", "value"):
                if isinstance(text := getattr(node, name, None), str):
                    used.add(text)
    unused = {
        path for path in PATHS if path not in used and path.rpartition(".")[2] not in used
    } - {HOOK_TARGETS[name] for name in used & HOOK_TARGETS.keys()}
    assert unused <= IMPLIED


def test_every_part_of_flashinfer_that_is_listed_is_used() -> None:
    nodes = [node for path in HOST_CODE for node in ast.walk(parsed(path))]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {node.value for node in nodes if isinstance(node, ast.Constant)}
    # Of the compiled plan, the place of an argument is used.
    assert {symbol.name.rpartition(".")[2] for symbol in PARTS} - {PLAN.name} <= used


def test_the_checkers_need_no_host() -> None:
    checkers = list((PACKAGE / "contract").glob("*.py"))
    assert len(checkers) > 5
    for path in checkers:
        source = path.read_text()
        assert not re.search(r"^\s*(from|import) (sglang|torch)\b", source, re.MULTILINE)
