"""Does every attention backend keep the text when the tier changes in every round?

Per backend three servers answer the same prompts greedily: `none`, the host's own EAGLE at three
steps (`static-3`), and ADAPTIVE_EAGLE, which takes another of its tiers in every round (`ours`). A
miniature that drafts trees is also served by the host's own EAGLE with one tree.
Llama shapes are those of the SmolLM2 pair; latent attention is a DeepSeek-V3 in miniature with one
MTP layer and seeded random weights (tools/tiny_mtp.py), with the widths that MLA kernels know.
Trees take part where the backend drafts them. Speed is not measured. A case named after an
architecture serves that one in miniature (tools/tiny_targets.py: seeded random weights, chains);
one named after a setting serves Llama in miniature under it. A pass of sampled requests follows.

On the machine with the H200, from the project's root (T, P as in studies/transition; 250 s,
twice that beside other benchmarks); with two GPUs also the case of two tensor-parallel ranks:

    python3 -m benchmarks.studies.backends run --cases flashinfer,triton --target T --prompts P \\
        --git-sha SHA --out $OUT --tag 1
    python3 -m benchmarks.studies.backends run --cases flashinfer-mla,triton-mla \\
        --git-sha SHA --out $OUT --tag 2
    python3 -m benchmarks.studies.backends run --cases triton-mla-tp2 \\
        --git-sha SHA --out $OUT --tag 3
    TINY_HEAD_DIM=64 python3 -m benchmarks.studies.backends run --many 400 \\
        --cases default-llama,default-gemma3 --git-sha SHA --out $OUT --tag 4
    python3 -m benchmarks.studies.backends merge runs/backends-*.json \\
        --result benchmarks/results/current/backends-h200.json.xz

The sparse cases are about contexts of which the indexer leaves something out:

    python3 -m benchmarks.studies.backends run --cases default-dsa,default-dsa-shared \\
        --prompt-tokens 3000 --context-length 8192 --max-total-tokens 65536 --many 200 \\
        --new-tokens 64 --git-sha SHA --out $OUT --tag dsa

Ranks of attention DP, and a PD pair (it needs nixl), with so small a pool that requests are put
back (backends-dp-h200.json.xz was made with the usual pool, backends-dp-h100.json.xz with 400
tokens a rank, where none was; both without static-1 and static-5; backends-pair-h200.json.xz with
500 tokens for the pair):

    TINY_HEAD_DIM=64 python3 -m benchmarks.studies.backends run --many 100 --new-tokens 64 \\
        --max-total-tokens 300 --cases fa3-mla-dp2,default-qwen3-moe-dp2,default-llama-pair \\
        --git-sha SHA --out $OUT --tag dp

A table of what was written as the draft (SGLang's NGRAM), and a whole model. Random prompts will
do: the miniature mostly writes tokens in one order, so the table soon has drafts:

    OUT=$OUT SHA=SHA benchmarks/gpus.sh 0=backends-table 1=backends-whole

Architectures and settings go to backends-architectures-h200.json.xz. Several commands may run at
once, each with a --port of its own, 100 apart.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.inject.delay_plugin import DELAY_ENV
from benchmarks.inject.engine import CONFIDENCE, LENGTHS
from benchmarks.inject.indexer_plugin import INDEXER_ENV
from benchmarks.inject.plant_plugin import FAULT_ENV
from benchmarks.lab.arms import (
    OURS,
    Arm,
    add_before,
    earlier,
    is_earlier,
    static,
    static_table,
)
from benchmarks.lab.fleet import (
    PORT_STEP,
    Engine,
    in_parallel,
    keep_logs,
    requests_that_leave,
    serving_fleet,
)
from benchmarks.lab.load import PrefillNode, Round, generate_closed
from benchmarks.lab.models import ModelPair, prompt_ids, read_prompts
from benchmarks.lab.run_files import add_merge, begin_run, merge_lists, run_command, write_run
from benchmarks.lab.session import Plan
from benchmarks.lab.settings import (
    DUMMY_WEIGHTS,
    NO_MULTICAST,
    PYTHON_TREE,
    add_fleet_flags,
    fleet_plan,
    words,
)
from benchmarks.stats.differences import Gap, keys
from benchmarks.stats.figures import HEADER, Figure, exact
from benchmarks.stats.tables import table
from benchmarks.studies.sampling.summary import agreement, identical
from benchmarks.studies.sampling.tables import paired_ratio
from sglang_adaptive_spec.tiers import Tier, chain_tier
from tools.tiny_lora import RANKS, lora_arguments, make_tiny_lora

# Servers start together: what one takes of the GPU looks to the others like their own tiers'.
ANY_MEMORY = {"policy": "goodput", "memory_budget_gb": 64}
CHAIN_CONFIG = {**ANY_MEMORY, "1": {"candidate_steps": [0, 1, 3, 5]}}
TREE_CONFIG = {
    **ANY_MEMORY,
    "1": {"candidate_steps": [0, 1, 3, 5], "candidate_tiers": [[2, 4, 7], [3, 2, 5], [3, 4, 8]]},
}
TREE = Tier(3, 4, 8)
TREE_ARM = static(TREE).name
TABLE_CONFIG = {**CHAIN_CONFIG, "base": "NGRAM"}
TABLE_NODES = 3  # that static NGRAM verifies beyond the root
TABLE_ARM = static_table(TABLE_NODES).name
# A hidden state of 512 is none that FlashInfer fuses with an all-reduce.
WITHOUT_FUSION = ("--enforce-disable-flashinfer-allreduce-fusion",)
CONCURRENCY = (1, 8)
NUM_PROMPTS = 24  # where no file has them
MAX_TOTAL_TOKENS = 16384
LEAVING_TOKENS = 192  # of a request that is aborted before
OF_ROUNDS = ("widths", "correct_drafts", "num_sampled", "num_retracted", "num_aborted")  # by arm
SHOWN = ("static-1", "static-3", "static-5", TREE_ARM, TABLE_ARM, "ours")
MOST_PLANTED = 0.9  # texts as none's over static EAGLE's, where tiers share what they must not
MIN_CORRECT_DRAFTS = 0.2  # a round and request, where a miniature drafts
# Few graphs: miniatures are for texts, and many servers start at once.
FEW_GRAPHS = ("--cuda-graph-max-bs-decode", "8", "--max-running-requests", "16")

# Architectures in miniature, and their drafts: a folder, or the target's own layer.
OWN_LAYER = ""
FAMILY_DRAFTS = {
    "llama": "eagle3",
    "qwen2": "eagle3",
    "qwen3": "eagle3",
    "qwen3-moe": "eagle3",
    "qwen3-next": "eagle3",
    "qwen2.5-vl": "qwen2.5-vl-eagle3",
    "qwen3-vl": "qwen3-vl-eagle3",
    "gemma3": "gemma3-eagle3",
    "gpt-oss": "eagle3",
    "glm4-moe": OWN_LAYER,
    "mimo": OWN_LAYER,
}

# SGLang's own choice of kernels needs a package that not every GPU machine has.
OTHER_KERNELS = {"gpt-oss": ("--moe-runner-backend", "triton")}

# Requests are let in although a small pool cannot hold them to their end.
PUTS_BACK = ("--schedule-conservativeness", "0.1")
NIXL = ("--disaggregation-transfer-backend", "nixl")
BOOTSTRAP_AT = 15  # after a prefill node's own port: where the nodes of its pair meet

NO_ENVIRONMENT: Mapping[str, str] = {}
PLANTED = "planted-fault"

Raw = Mapping[str, Any]


class Setting(NamedTuple):
    """What a case adds to every arm, and to the arguments of those that speculate."""

    extra: tuple[str, ...]
    without: tuple[str, ...] = ()
    speculative: tuple[str, ...] = ()
    draft: str = "eagle3"
    has_table: bool = False  # of what was written, which drafts in place of a model
    environment: Mapping[str, str] = NO_ENVIRONMENT
    adapters: tuple[str | None, ...] = ()  # of LoRA, by turns; None: the base model
    prefill: tuple[str, ...] = ()  # of the server that reads the prompts of one that speculates
    packed: str = ""  # of each row another number of drafts is verified in every round: LENGTHS...


SETTINGS = {
    "fp8": Setting(("--quantization", "fp8")),
    # The pool is small, so that prefixes come back from the host's memory.
    "hicache": Setting(
        (
            *("--enable-hierarchical-cache", "--hicache-ratio", "8"),
            *("--hicache-write-policy", "write_through", "--max-total-tokens", "3072"),
        ),
        without=("--disable-radix-cache",),
    ),
    # SGLang has it for drafts that know all of the target's tokens: EAGLE's, not EAGLE-3's here.
    "rejection-sampling": Setting(
        (), speculative=("--speculative-use-rejection-sampling",), draft="eagle"
    ),
    "standalone": Setting((), draft="standalone"),  # a whole model
    "ngram": Setting((), has_table=True),
    "lora": Setting((), adapters=(*RANKS, None)),  # csgmv, SGLang's own choice
    "lora-triton": Setting(("--lora-backend", "triton"), adapters=(*RANKS, None)),
    # Two GPUs: prompts are read on one, by a server of the same arm, and go on on the other.
    "pair": Setting(
        (),
        speculative=(
            *("--disaggregation-mode", "decode", "--base-gpu-id", "1", *NIXL),
            *("--num-reserved-decode-tokens", "16"),  # of a small pool
        ),
        prefill=("--disaggregation-mode", "prefill", *NIXL),
    ),
    "plan-stream": Setting((), environment={"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"}),
    PLANTED: Setting((), environment={FAULT_ENV: "1"}),
    "packed": Setting((), packed=LENGTHS),
    "confident": Setting((), packed=CONFIDENCE),
    # The GPU lags by a forward and more, so that plans are made well ahead of their use.
    "slow-gpu": Setting((), environment={DELAY_ENV: "10"}),
}


BASES = {"eagle": "EAGLE", "standalone": "STANDALONE"}  # by draft, but for EAGLE-3's

# Whether the draft's first step picks for all of its steps, as GLM-5.2's does.
SPARSE = {"dsa": False, "dsa-shared": True}
TORCH_INDEXER = {INDEXER_ENV: "1"}


class Case(NamedTuple):
    """One backend with one kind of attention, on one rank or several."""

    backend: str  # empty: SGLang's own choice
    is_mla: bool
    has_trees: bool
    tp_size: int = 1
    family: str = ""  # an architecture in miniature
    setting: str = ""
    has_dp: bool = False  # each rank has requests of its own
    sparse: str = ""  # latent attention with DeepSeek-V3.2's indexer: a key of SPARSE

    @property
    def name(self) -> str:
        """As the tables show it."""
        kind = "dp" if self.has_dp else "tp"
        ranks = "" if self.tp_size == 1 else f"-{kind}{self.tp_size}"
        target = "-mla" * self.is_mla or f"-{self.family}" * bool(self.family)
        target = f"-{self.sparse}" if self.sparse else target
        setting = f"-{self.setting}" * bool(self.setting)
        return f"{self.backend or 'default'}{target}{setting}{ranks}"

    @property
    def draft(self) -> str:
        """The folder of a miniature's draft."""
        if self.setting:
            return SETTINGS[self.setting].draft
        return FAMILY_DRAFTS[self.family] or self.family

    @property
    def given(self) -> Setting:
        """What its setting adds to every arm."""
        return SETTINGS[self.setting] if self.setting else Setting(())

    @property
    def is_miniature(self) -> bool:
        """Whether models of seeded weights are made for it."""
        return self.is_mla or bool(self.family)

    @property
    def has_own_layer(self) -> bool:
        """Whether the draft is a layer of the target."""
        return self.is_mla or FAMILY_DRAFTS.get(self.family) == OWN_LAYER

    @property
    def extra(self) -> tuple[str, ...]:
        """Arguments of every server."""
        extra: tuple[str, ...] = ("--attention-backend", self.backend) if self.backend else ()
        if self.tp_size > 1:
            extra += ("--tp-size", str(self.tp_size), *WITHOUT_FUSION)
        if self.has_dp:
            extra += ("--dp-size", str(self.tp_size), "--enable-dp-attention", *PUTS_BACK)
        extra += FEW_GRAPHS * bool(self.family or self.sparse)
        return extra + self.given.extra + OTHER_KERNELS.get(self.family, ())

    @property
    def concurrency(self) -> tuple[int, ...]:
        """Requests at once, pass by pass: packed rounds have graphs for many."""
        return (1, 64) if self.given.packed else CONCURRENCY

    @property
    def static_steps(self) -> tuple[int, ...]:
        """Depths of static EAGLE to compare with.

        Latent attention across ranks has all of ours: they round unlike each other in bfloat16.
        """
        return (1, 3, 5) if self.is_mla and self.has_dp else (3,)

    def static_arms(self) -> list[Arm]:
        """Returns what the host serves by itself with the same draft."""
        if self.given.has_table:
            return [static_table(TABLE_NODES)]
        base = "EAGLE" if self.has_own_layer else BASES.get(self.given.draft, "EAGLE3")
        chains = [static(chain_tier(num_steps), base) for num_steps in self.static_steps]
        return [*chains, static(TREE, base)] if self.has_trees and self.is_miniature else chains

    def our_arm(self) -> Arm:
        """Returns ADAPTIVE_EAGLE, which takes another tier in every round."""
        config = TREE_CONFIG if self.has_trees else CHAIN_CONFIG
        arm = Arm("ours", OURS, config, policy="alternate")
        if policy := self.given.packed:
            config = {**config, "packing": True, "confidence": policy == CONFIDENCE}
            arm = replace(arm, config=config, policy=policy)
        return replace(arm, config=TABLE_CONFIG, has_draft=False) if self.given.has_table else arm

    def arms(self) -> list[Arm]:
        """Returns the arms of the comparison."""
        setting = self.given
        arms = [Arm("none"), *self.static_arms(), self.our_arm()]
        return [
            replace(
                arm,
                extra=self.extra + setting.speculative * bool(arm.speculative),
                environment={
                    **NO_MULTICAST,
                    **PYTHON_TREE,
                    **setting.environment,
                    **(TORCH_INDEXER if self.sparse else {}),
                },
            )
            for arm in arms
        ]


CASES = {
    case.name: case
    for case in (
        Case("flashinfer", is_mla=False, has_trees=True),
        Case("fa3", is_mla=False, has_trees=True),
        Case("triton", is_mla=False, has_trees=True),
        Case("flashinfer", is_mla=True, has_trees=False),
        Case("triton", is_mla=True, has_trees=True),
        Case("triton", is_mla=True, has_trees=True, tp_size=2),
        Case("fa3", is_mla=True, has_trees=True),
        *(
            Case(backend, is_mla=True, has_trees=False, tp_size=2, has_dp=True)
            for backend in ("flashinfer", "fa3", "triton", "intel_amx")
        ),
        Case("", is_mla=False, has_trees=False, tp_size=2, has_dp=True, family="qwen3-moe"),
        *(
            Case(backend, False, has_trees=False, setting=setting)
            for backend in ("", "flashinfer", "intel_amx")
            for setting in ("packed", "confident")
        ),
        *(Case("", is_mla=True, has_trees=False, sparse=name) for name in SPARSE),  # Hopper
        Case("intel_amx", is_mla=False, has_trees=True),  # the CPU host
        Case("intel_amx", is_mla=True, has_trees=True),
        *(
            Case(backend, is_mla=False, has_trees=family == "llama", family=family)
            for backend in ("", "fa3", "flashinfer", "triton", "intel_amx")
            for family in FAMILY_DRAFTS
        ),
        *(
            Case(backend, False, has_trees=False, family="llama", setting=name)
            for backend in ("", "flashinfer", "triton", "intel_amx")
            for name in SETTINGS
        ),
        *(
            Case(backend, False, has_trees=False, family="qwen3-moe", setting=name)
            for backend in ("", "intel_amx")
            for name in ("lora", "lora-triton")
        ),
    )
}
# FA3 needs kernels that not every build of sgl_kernel brings: name its cases where they are there.
GPU_CASES = ("flashinfer", "triton", "flashinfer-mla", "triton-mla")


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--cases", type=words, default=GPU_CASES, help=f"of {', '.join(CASES)}")
    run_.add_argument("--prompts", type=Path, help="token ids per phase, JSON [random ids]")
    run_.add_argument("--new-tokens", type=int, default=128, help="of a text [128]")
    run_.add_argument("--many", type=int, default=0, help="prompts of several requests at once")
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    add_before(run_)
    run_.set_defaults(context_length=2048, prompt_tokens=24)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Compares the texts of every case; returns 1 if a server or case is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "backends")
    record |= {"cases": []}
    with tempfile.TemporaryDirectory(prefix="backends-bench-") as scratch:
        for number, name in enumerate(args.cases):
            folder = Path(scratch) / name
            plan = replace(fleet_plan(args, folder), inject_seed=None, port=args.port + number)
            case = CASES[name]
            try:
                compared = compare(case, plan, args, deadline)
            except RuntimeError as error:  # a server that ended; the other cases are not its own
                print(f"{name}: {error}")
                compared = {"name": name, "texts": {}, "widths": {}, "servers": []}
            record["cases"].append(compared)
            arms = arms_of(case, args.before)
            readers, _ = prefill_arms(case, arms, plan.port)
            keep_logs([*readers, *arms], folder, path.with_suffix(".log"))
            write_run(record, path)
    result = build_result(record["provenance"], record["cases"])
    print(figure_table(result))
    return 0 if all(case["texts"] for case in record["cases"]) else 1


def arms_of(case: Case, before: str | None) -> list[Arm]:
    """Returns the arms of a case, with ours of an earlier commit, where one is named."""
    arms = case.arms()
    return [*arms, *earlier(arms[-1], before)]


def compare(case: Case, plan: Plan, args: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Serves a case's arms; returns how far their texts are those of `none`."""
    plan = plan_of(case, plan, args.dry_cpu)
    # The prompts of a file are those of the Llama pair's tokenizer.
    prompts = prompt_ids(max(NUM_PROMPTS, args.many), args.prompt_tokens, args.seed)
    if args.prompts is not None and not case.is_miniature:
        prompts = [prompt for phase in read_prompts(args.prompts).values() for prompt in phase]
    few = prompts[:NUM_PROMPTS] if args.many else prompts
    by_concurrency = dict(zip(case.concurrency, (few, prompts), strict=True))

    arms = arms_of(case, args.before)
    readers, nodes = prefill_arms(case, arms, plan.port)

    def answered(engine: Engine) -> dict[str, Any]:
        node = nodes.get(engine.arm.name)
        return answers(engine, by_concurrency, args.new_tokens, case, node)

    at_once = not args.dry_cpu
    with serving_fleet([*readers, *arms], plan, deadline, at_once, ours_too=True) as fleet:
        engines = [engine for engine in fleet if not engine.arm.is_prefill]
        if len(fleet) - len(engines) < len(readers):
            raise RuntimeError("a prefill node does not serve, and its decode node would wait.")
        by_arm = {each["arm"]: each for each in in_parallel(engines, answered)}
    return {
        "name": case.name,
        "texts": agreed_texts(by_arm, case.concurrency) if len(by_arm) == len(arms) else {},
        **{name: {arm: each[name] for arm, each in by_arm.items()} for name in OF_ROUNDS},
        "servers": [engine.measured for engine in engines],
    }


def prefill_arms(
    case: Case, arms: Sequence[Arm], first_port: int
) -> tuple[list[Arm], dict[str, PrefillNode]]:
    """Returns the prefill nodes of a case's pairs, and where each is, by its decode node's arm.

    Theirs are the first ports of the fleet.
    """
    readers: list[Arm] = []
    nodes: dict[str, PrefillNode] = {}
    for arm in arms:
        if case.given.prefill and arm.speculative:
            port = first_port + len(readers) * PORT_STEP
            node = PrefillNode(f"http://127.0.0.1:{port}", port + BOOTSTRAP_AT)
            meets = ("--disaggregation-bootstrap-port", str(node.bootstrap_port))
            extra, name = (*case.extra, *case.given.prefill, *meets), f"{arm.name}-prefill"
            readers.append(replace(arm, name=name, extra=extra, is_prefill=True, policy="own"))
            nodes[arm.name] = node
    return readers, nodes


def plan_of(case: Case, plan: Plan, is_cpu: bool) -> Plan:
    """Returns ``plan`` with the models of a case, and without what its setting leaves out."""
    common = tuple(word for word in plan.common if word not in case.given.without)
    pair = made_pair(case, plan.folder, is_cpu)
    if case.given.adapters:
        common += lora_arguments(make_tiny_lora(plan.folder, "moe" in case.family))
    if pair is not None:
        common = tuple(word for word in common if word not in DUMMY_WEIGHTS)
        plan = replace(plan, pair=pair)
    if not case.backend and "--attention-backend" in common:
        at = common.index("--attention-backend")
        common = common[:at] + common[at + 2 :]
    return replace(plan, common=common)


def answers(
    engine: Engine,
    by_concurrency: Mapping[int, Sequence[Sequence[int]]],
    new_tokens: int,
    case: Case,
    prefill: PrefillNode | None = None,
) -> dict[str, Any]:
    """Asks a server greedily, then with sampling; returns texts and what its rounds did.

    Where ranks have requests of their own, others of the first rank leave while many are answered.
    """
    engine.server.command(policy=engine.arm.policy)
    url = engine.server.url
    adapters = case.given.adapters
    ask = partial(generate_closed, url, ignore_eos=True, adapters=adapters, prefill=prefill)
    answered, num_aborted = [], 0
    for concurrency, prompts in by_concurrency.items():
        leaving: Any = contextlib.nullcontext([])
        if case.has_dp and concurrency > 1:
            leaving = requests_that_leave(url, prompts[0], LEAVING_TOKENS, routed_dp_rank=0)
        with leaving as gone:
            answered.append(ask(prompts, new_tokens, concurrency))
        num_aborted += len(gone)
    rounds = [each for fields in engine.server.rounds() if (each := Round(*fields)).batch_size]
    engine.server.command(policy=engine.arm.policy)
    concurrency, prompts = max(by_concurrency.items())
    sampled = ask(prompts[:NUM_PROMPTS], new_tokens, concurrency, temperature=0.8)
    return {
        "arm": engine.arm.name,
        "texts": [[answer["output_ids"] for answer in each] for each in answered],
        "widths": dict(Counter(str(each.num_draft_tokens) for each in rounds)),
        "correct_drafts": mean_correct_drafts(rounds),
        "num_sampled": sum(len(answer["output_ids"]) == new_tokens for answer in sampled),
        "num_retracted": sum(
            answer["meta_info"].get("num_retractions", 0) for each in answered for answer in each
        ),
        "num_aborted": num_aborted,
    }


def mean_correct_drafts(rounds: Sequence[Round]) -> float | None:
    """Returns the accepted drafts per request of the rounds that drafted; None without any."""
    drafting = [each for each in rounds if (each.num_draft_tokens or 1) > 1]
    if not drafting:
        return None
    correct = sum(each.num_tokens - each.batch_size for each in drafting)
    return round(correct / sum(each.batch_size for each in drafting), 4)


def made_pair(case: Case, folder: Path, is_cpu: bool) -> ModelPair | None:
    """Writes the models that a case serves under ``folder``; None if it serves the plan's."""
    if not case.is_miniature:
        return None
    if case.is_mla:
        from tools.tiny_mtp import KERNEL_WIDTHS, SMALL_WIDTHS, Indexer, make_tiny_mtp

        indexer = Indexer(shares_for_mtp=SPARSE[case.sparse]) if case.sparse else None
        model = make_tiny_mtp(folder, SMALL_WIDTHS if is_cpu else KERNEL_WIDTHS, indexer)
        return ModelPair(model, model)
    from tools.tiny_models import make_tiny_models
    from tools.tiny_targets import make_tiny_targets

    folders = make_tiny_models(folder) | make_tiny_targets(folder)
    if not is_cpu:  # where a target in float32 has no attention kernels
        for path in folder.glob("*/config.json"):
            path.write_text(path.read_text().replace('"float32"', '"bfloat16"'))
    folders["llama"] = folders["target"]
    return ModelPair(folders[case.family], folders[case.draft])


def agreed_texts(
    by_arm: Mapping[str, Raw], at_once: Sequence[int] = CONCURRENCY
) -> dict[str, list[dict[str, Any]]]:
    """Returns, per arm but `none` and number of requests at once, how far each text agrees."""
    reference = by_arm["none"]["texts"]
    return {
        arm: [
            {
                "concurrency": concurrency,
                "agreed": [agreement(*pair) for pair in zip(mine, theirs, strict=True)],
            }
            for concurrency, mine, theirs in zip(at_once, each["texts"], reference, strict=True)
        ]
        for arm, each in by_arm.items()
        if arm != "none"
    }


def build_result(origin: Raw, cases: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file."""
    return {
        "provenance": dict(origin),
        "identical": {
            case["name"]: {
                arm: round(sum(flags) / len(flags), 4)
                for arm, compared in case["texts"].items()
                if (flags := same_texts(compared))
            }
            for case in cases
        },
        "raw": list(cases),
    }


def same_texts(compared: Sequence[Raw]) -> list[bool]:
    """Returns, per request, whether its text is that of `none`."""
    return [flag for each in compared for flag in identical(each)]


def figures(result: Raw) -> list[Figure]:
    """Returns what is claimed of every case."""
    claims = []
    for case in result["raw"]:
        if not case["texts"]:
            claims.append(Figure(f"{case['name']}: served", exact(0.0), 1.0))
            continue
        is_planted = PLANTED in case["name"]  # which the comparison must see
        limit = MOST_PLANTED if is_planted else 1.0
        for rival in (like_ours(case), *filter(is_earlier, case["texts"])):
            mine, other = (same_texts(case["texts"][arm]) for arm in ("ours", rival))
            pairs = list(zip(mine, other, strict=True))
            claim = f"{case['name']}: texts as under none, ours over {rival}, {len(pairs)} requests"
            claims.append(Figure(claim, paired_ratio(pairs), limit, is_planted))
    return claims


def check_backends(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    problems = keys("file", result, {"provenance", "identical", "raw"})
    if problems:
        return problems
    for case in result["raw"]:
        if case["texts"] and len(case["widths"]["ours"]) < 4:  # else nothing was switched
            problems.append(f"{case['name']}: ran {case['widths']['ours']} only")
        if case["texts"] and "correct_drafts" in case:
            problems += drafts_and_samples(case)
        late = [each["arm"] for each in case["servers"] if each["captures"]["after_ready"]]
        problems += [f"{case['name']}: {arm} captured while serving" for arm in late]
    if result["identical"] != build_result(result["provenance"], result["raw"])["identical"]:
        problems.append("identical is not what raw gives")
    return problems


def like_ours(case: Raw) -> str:
    """Returns the static arm that ours is held to: one with a tree or a table, where it was served.

    Trees round unlike chains, and SGLang's default for them is FlashInfer where a chain has FA3.
    """
    return next((arm for arm in (TREE_ARM, TABLE_ARM) if arm in case["texts"]), "static-3")


def drafts_and_samples(case: Raw) -> list[str]:
    """Returns which arms of a case accepted hardly a draft, or left sampled requests unanswered."""
    correct = {arm: mean for arm, mean in case["correct_drafts"].items() if mean is not None}
    return [
        *(
            Gap(f"{case['name']}: {arm} accepted {mean} drafts a round and request only")
            for arm, mean in correct.items()
            if mean < MIN_CORRECT_DRAFTS
        ),
        *(
            f"{case['name']}: {arm} answered {num} of {NUM_PROMPTS} sampled requests"
            for arm, num in case["num_sampled"].items()
            if num < NUM_PROMPTS
        ),
    ]


def figure_table(result: Raw) -> str:
    """Returns every claim with its verdict, and the shares behind it."""
    shares = [
        (name, *(f"{arms[arm]:.4f}" if arm in arms else "" for arm in SHOWN))
        for name, arms in result["identical"].items()
    ]
    disturbed = [
        (case["name"], arm, case["num_retracted"][arm], num_aborted)
        for case in result["raw"]
        for arm, num_aborted in case.get("num_aborted", {}).items()
        if num_aborted
    ]
    tables = [
        table(HEADER, [each.row() for each in figures(result)]),
        table(("case", *(f"{arm} as none" for arm in SHOWN)), shares),
    ]
    if disturbed:
        tables.append(table(("case", "arm", "put back", "aborted"), disturbed))
    return "\n".join(tables)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["cases"], build_result, figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
