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
WORKER = f"{EAGLE}.EAGLEWorkerV2"
GRAPHS = "sglang.srt.model_executor.cuda_graph_config"

# id: module, edit, symbol that the refusal must name, what it must say was found
CHANGES: dict[str, tuple[str, Edit, str, str]] = {
    "hook renamed": (
        "sglang.srt.server_args",
        renamed("resolve_once"),
        "sglang.srt.server_args.ServerArgs.resolve_once",
        MISSING,
    ),
    "hook lost a parameter": (
        "sglang.srt.model_executor.model_runner_components.cuda_graph_setup",
        replaced("def capture_decode_graph(*, model_runner:", "def capture_decode_graph(*, r:"),
        "sglang.srt.model_executor.model_runner_components.cuda_graph_setup.capture_decode_graph",
        "function(*, r)",
    ),
    "hook became an attribute": (
        "sglang.srt.managers.scheduler",
        replaced("    def get_init_info(self)", "    get_init_info = None\n\n    def other(self)"),
        "sglang.srt.managers.scheduler.Scheduler.get_init_info",
        "attribute",
    ),
    "override renamed": (
        EAGLE,
        renamed("_override_worker_state"),
        f"{WORKER}._override_worker_state",
        MISSING,
    ),
    "override got a parameter": (
        EAGLE,
        replaced("grammar_barrier=None,\n", "grammar_barrier=None,\n        surprise=None,\n"),
        f"{WORKER}.forward_batch_generation",
        "surprise=None",
    ),
    "override lost a parameter": (
        EAGLE,
        replaced(
            'cuda_graph_bs: list[int] | None = None,\n    ):\n        """Temporarily',
            '):\n        """Temporarily',
        ),
        f"{WORKER}._override_worker_state",
        "function(self, speculative_num_steps, speculative_num_draft_tokens)",
    ),
    "call lost a parameter": (
        "sglang.srt.utils.common",
        replaced("distributed=False, empty_cache=True, cpu_group=None", "empty_cache=True"),
        "sglang.srt.utils.get_available_gpu_memory",
        "function(device, gpu_id, empty_cache=True)",
    ),
    "call got a required parameter": (
        "sglang.srt.runtime_context",
        replaced("def get_exec()", "def get_exec(stage)"),
        "sglang.srt.runtime_context.get_exec",
        "function(stage)",
    ),
    "call lost its free keywords": (
        "sglang.srt.runtime_context",
        replaced("def override(self, source: str, **fields)", "def override(self, source: str)"),
        "sglang.srt.runtime_context.RuntimeContext.override",
        "function(self, source)",
    ),
    "call got a required keyword": (
        "sglang.srt.speculative.spec_info",
        replaced("supports_overlap: bool = False,", "supports_overlap: bool = False, owner: str,"),
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.register",
        "owner",
    ),
    "class called got a required field": (
        "sglang.srt.layers.logits_processor",
        replaced(
            "    next_token_logits: Optional[torch.Tensor]\n",
            "    owner: str\n    next_token_logits: list\n",
        ),
        "sglang.srt.layers.logits_processor.LogitsProcessorOutput",
        "owner",
    ),
    "class called lost a field": (
        "sglang.srt.managers.utils",
        renamed("extra_keep_alive_refs"),
        "sglang.srt.managers.utils.GenerationBatchResult",
        "extra_keep_alive_refs_renamed",
    ),
    "overridden property became a method": (
        EAGLE,
        replaced(
            "    @property\n    def last_shared_read_runner(self)",
            "    def last_shared_read_runner(self)",
        ),
        f"{WORKER}.last_shared_read_runner",
        "function(self)",
    ),
    "call takes its positions in another order": (
        "sglang.srt.plugins.hook_registry",
        replaced(
            "        target: str,\n        hook: Callable,",
            "        hook: Callable,\n        target: str,",
        ),
        "sglang.srt.plugins.hook_registry.HookRegistry.register",
        "cls, hook, target",
    ),
    "read field removed": (
        "sglang.srt.arg_groups.fields.spec",
        renamed("speculative_adaptive_config"),
        "sglang.srt.server_args.ServerArgs.speculative_adaptive_config",
        MISSING,
    ),
    "read attribute became a method": (
        "sglang.srt.managers.tp_worker",
        replaced("    @property\n    def model_runner(self)", "    def model_runner(self)"),
        "sglang.srt.managers.tp_worker.TpModelWorker.model_runner",
        "function(self)",
    ),
    "read constant renamed": (
        GRAPHS,
        replaced('    DISABLED = "disabled"', '    OFF = "disabled"'),
        f"{GRAPHS}.Backend.DISABLED",
        MISSING,
    ),
    "written field became read-only": (
        GRAPHS,
        replaced("@dataclass\nclass PhaseConfig", "@dataclass(frozen=True)\nclass PhaseConfig"),
        f"{GRAPHS}.PhaseConfig.bs",
        "read-only attribute",
    ),
    "written attribute became a property": (
        "sglang.srt.model_executor.model_runner",
        replaced(
            "class ModelRunner:\n",
            "class ModelRunner:\n    @property\n    def attn_backend(self): return None\n\n",
        ),
        "sglang.srt.model_executor.model_runner.ModelRunner.attn_backend",
        "read-only property",
    ),
    "written attribute gone from the base class": (
        "sglang.srt.speculative.base_spec_worker",
        renamed("_topk1_parents_prealloc"),
        f"{EAGLE}.EagleDraftWorker._topk1_parents_prealloc",
        MISSING,
    ),
    "attribute no longer assigned from outside": (
        EAGLE,
        renamed("draft_runner.draft_attn_backend"),
        "sglang.srt.model_executor.model_runner.ModelRunner.draft_attn_backend",
        MISSING,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_symbol_is_refused_by_name(change: str, tmp_path: Path) -> None:
    module, edit, symbol, found = CHANGES[change]
    mutate(host_source(VERSION), tmp_path, module, edit)

    contract = [entry for entry in CONTRACT if entry.path == symbol]
    report = contract_report(HostInfo(VERSION, tmp_path), contract)
    assert not report.ok
    (mismatch,) = report.mismatches
    assert found in mismatch.found
    for part in (symbol, VERSION, mismatch.expected, mismatch.found, mismatch.why, SUPPORTED):
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
        (f"{EAGLE}", renamed("_draft_forward_idle")),
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
