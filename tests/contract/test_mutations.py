"""A host that differs in one symbol is refused with that symbol's name, whatever its kind."""

from collections import defaultdict
from pathlib import Path

import pytest

from sglang_adaptive_spec.contract.check import MISSING, check, contract_report, find_symbol
from sglang_adaptive_spec.contract.source import HostSource
from sglang_adaptive_spec.contract.table import CONTRACT, Symbol
from sglang_adaptive_spec.contract.versions import SUPPORTED, HostInfo
from tests.contract.mutant import Edit, mutate, renamed, replaced
from tests.hosts import host_source

VERSION = "0.5.23"
EAGLE = "sglang.srt.speculative.eagle_worker_v2"

# id: symbol that the refusal must name, edit where it is declared, what must be said was found
CHANGES: dict[str, tuple[str, Edit, str]] = {
    "hook renamed": ("ServerArgs.resolve_once", renamed("resolve_once"), MISSING),
    "hook lost a parameter": (
        "capture_decode_graph",
        replaced("def capture_decode_graph(*, model_runner:", "def capture_decode_graph(*, r:"),
        "function(*, r)",
    ),
    "hook became an attribute": (
        "Scheduler.get_init_info",
        replaced("    def get_init_info(self)", "    get_init_info = None\n\n    def other(self)"),
        "attribute",
    ),
    "override renamed": (
        "EAGLEWorkerV2._override_worker_state",
        renamed("_override_worker_state"),
        MISSING,
    ),
    "override got a parameter": (
        "EAGLEWorkerV2.forward_batch_generation",
        replaced("grammar_barrier=None,\n", "grammar_barrier=None,\n        surprise=None,\n"),
        "surprise=None",
    ),
    "override lost a parameter": (
        "EAGLEWorkerV2._override_worker_state",
        replaced(
            'cuda_graph_bs: list[int] | None = None,\n    ):\n        """Temporarily',
            '):\n        """Temporarily',
        ),
        "function(self, speculative_num_steps, speculative_num_draft_tokens)",
    ),
    "call lost a parameter": (
        "get_available_gpu_memory",
        replaced("distributed=False, empty_cache=True, cpu_group=None", "empty_cache=True"),
        "function(device, gpu_id, empty_cache=True)",
    ),
    "call got a required parameter": (
        "get_exec",
        replaced("def get_exec()", "def get_exec(stage)"),
        "function(stage)",
    ),
    "call lost its free keywords": (
        "RuntimeContext.override",
        replaced("def override(self, source: str, **fields)", "def override(self, source: str)"),
        "function(self, source)",
    ),
    "call got a required keyword": (
        "SpeculativeAlgorithm.register",
        replaced("supports_overlap: bool = False,", "supports_overlap: bool = False, owner: str,"),
        "owner",
    ),
    "class called got a required field": (
        "LogitsProcessorOutput",
        replaced(
            "    next_token_logits: Optional[torch.Tensor]\n",
            "    owner: str\n    next_token_logits: list\n",
        ),
        "owner",
    ),
    "class called lost a field": (
        "GenerationBatchResult",
        renamed("extra_keep_alive_refs"),
        "extra_keep_alive_refs_renamed",
    ),
    "overridden property became a method": (
        "EAGLEWorkerV2.last_shared_read_runner",
        replaced(
            "    @property\n    def last_shared_read_runner(self)",
            "    def last_shared_read_runner(self)",
        ),
        "function(self)",
    ),
    "call takes its positions in another order": (
        "HookRegistry.register",
        replaced(
            "        target: str,\n        hook: Callable,",
            "        hook: Callable,\n        target: str,",
        ),
        "cls, hook, target",
    ),
    "read field removed": (
        "ServerArgs.speculative_adaptive_config",
        renamed("speculative_adaptive_config"),
        MISSING,
    ),
    "read attribute became a method": (
        "TpModelWorker.model_runner",
        replaced("    @property\n    def model_runner(self)", "    def model_runner(self)"),
        "function(self)",
    ),
    "read constant renamed": (
        "Backend.DISABLED",
        replaced('    DISABLED = "disabled"', '    OFF = "disabled"'),
        MISSING,
    ),
    "written field became read-only": (
        "PhaseConfig.bs",
        replaced("@dataclass\nclass PhaseConfig", "@dataclass(frozen=True)\nclass PhaseConfig"),
        "read-only attribute",
    ),
    "written attribute became a property": (
        "ModelRunner.attn_backend",
        replaced(
            "class ModelRunner:\n",
            "class ModelRunner:\n    @property\n    def attn_backend(self): return None\n\n",
        ),
        "read-only property",
    ),
    "written attribute gone from the base class": (
        "EagleDraftWorker._topk1_parents_prealloc",
        renamed("_topk1_parents_prealloc"),
        MISSING,
    ),
    "attribute no longer assigned from outside": (
        "ModelRunner.draft_attn_backend",
        renamed("draft_runner.draft_attn_backend"),
        MISSING,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_symbol_is_refused_by_name(change: str, tmp_path: Path) -> None:
    name, edit, found = CHANGES[change]
    (symbol,) = (symbol for symbol in CONTRACT if symbol.name == name)
    declared = find_symbol(HostSource(host_source(VERSION)), symbol)
    assert declared is not None
    mutate(host_source(VERSION), tmp_path, declared.place, edit)

    report = contract_report(HostInfo(VERSION, tmp_path), [symbol])
    assert not report.ok
    (mismatch,) = report.mismatches
    assert found in mismatch.found
    for part in (symbol.path, VERSION, mismatch.expected, mismatch.found, mismatch.why, SUPPORTED):
        assert part in report.message


@pytest.mark.full  # takes every symbol away, one by one
def test_every_member_that_vanishes_is_noticed(tmp_path: Path) -> None:
    members = [symbol for symbol in CONTRACT if "." in symbol.name]
    _rename_everywhere(tmp_path, {symbol: symbol for symbol in members})
    assert _missing(tmp_path) == {symbol.path for symbol in members}


@pytest.mark.full  # takes every symbol away, one by one
def test_every_class_function_and_constant_that_vanishes_is_noticed(tmp_path: Path) -> None:
    owners = {symbol: symbol.name.partition(".")[0] for symbol in CONTRACT}
    _rename_everywhere(
        tmp_path,
        {
            symbol: Symbol(symbol.module, owner, symbol.kind, symbol.why)
            for symbol, owner in owners.items()
        },
    )
    assert _missing(tmp_path) == {symbol.path for symbol in CONTRACT}


def test_what_does_not_concern_us_may_change(tmp_path: Path) -> None:
    host = host_source(VERSION)
    more = "supports_overlap: bool = False, more: bool = False,"
    changes = [
        (EAGLE, renamed("_draft_forward_idle")),
        ("sglang.srt.speculative.spec_info", replaced("supports_overlap: bool = False,", more)),
        (
            "sglang.srt.managers.scheduler",
            replaced("get_init_info(self)", "get_init_info(self, x)"),
        ),
    ]
    for module, edit in changes:
        mutate(host, tmp_path, module, edit)
    assert check(tmp_path) == []


def _rename_everywhere(folder: Path, renames: dict[Symbol, Symbol]) -> None:
    """Renames the leaf of each value where it is declared, until every key is missing."""
    present, root = renames, host_source(VERSION)
    while present:  # again for what a base class still declares
        source = HostSource(root)
        leaves: dict[str, set[str]] = defaultdict(set)
        for symbol in present.values():
            found = find_symbol(source, symbol)
            assert found is not None
            leaves[found.place].add(symbol.name.rpartition(".")[2])
        for module, names in leaves.items():
            mutate(host_source(VERSION), folder, module, renamed(*names))
        gone = _missing(folder)
        remaining = {key: value for key, value in present.items() if key.path not in gone}
        assert len(remaining) < len(present), "renaming no longer removes anything"
        present, root = remaining, folder


def _missing(folder: Path) -> set[str]:
    return {mismatch.symbol for mismatch in check(folder) if mismatch.found == MISSING}
