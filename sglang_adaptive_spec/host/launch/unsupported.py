"""Settings under which tiers cannot be switched; such a server's depth is static, with the reason.

Asked twice: about the raw arguments before resolution, and about the resolved ones after it, since
model overrides switch some of these on (sglang 0.5.23 arg_groups/overrides.py).
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.arg_groups.model_override_base import use_mla_backend
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.layers.attention.qsa.config import parse_qsa_profile
from sglang.srt.speculative.adaptive_spec_params import adaptive_unsupported_reason

from sglang_adaptive_spec.host.launch.attention_dp import joint_reason
from sglang_adaptive_spec.host.launch.options import options_of
from sglang_adaptive_spec.host.server_args import ServerArgs, num_replicas
from sglang_adaptive_spec.host.sizes import ATTENTION_FLAGS, draft_config

Read = Callable[[str], Any]

# Where tiers were ever switched.
DEVICES = ("cuda", "cpu")
OWN_LORA_GRAPHS = ("triton_v2", "ascend")  # what their graphs read is kept in a way of their own
# Limits of the host's own switching, by what the host reads where they do not hold.
OURS = {"speculative_eagle_topk": 1, "enable_dp_attention": False, "attn_dp_size": 1}
LIKE_EAGLE = {"STANDALONE": "EAGLE", "NGRAM": "EAGLE"}  # algorithms that switch as EAGLE does
INDEX_SHARE = "index_share_for_mtp_iteration"

# MLA backends that draft chains only; the host says so when a process makes the first one (sglang
# 0.5.23 layers/attention/flashinfer_mla_backend.py, flashmla_backend.py; the others derive from
# these). Other limits of trees are checked when the host resolves its arguments.
CHAINS_ONLY_ON_MLA = ("flashinfer", "flashmla", "trtllm_mla", "cutedsl_mla", "tokenspeed_mla")


def raw_reason(server_args: ServerArgs, is_listed: bool, has_trees: bool) -> str | None:
    """Returns why the user's own arguments rule out switching, or None.

    Args:
        server_args: The raw record.
        is_listed: Whether the config has a tier with the numbers given; then they say where to
            start.
        has_trees: Whether the config lists any.
    """
    topk = server_args.speculative_eagle_topk
    if topk is not None and topk > 1 and not is_listed:
        return (
            f"--speculative-eagle-topk {topk} fixes one tree; trees are switched where the config "
            "lists them in candidate_tiers, and that flag then names one of them"
        )
    if has_trees and server_args.disaggregation_mode == "decode":
        return (
            "on a PD decode node (disaggregation_mode=decode) a request begins with what the "
            "prefill node proposes, and the trees of this config were never begun so"
        )
    return _reason(lambda name: getattr(server_args, name))


def resolved_reason(server_args: ServerArgs) -> str | None:
    """Returns why the resolved arguments rule out switching, or None."""
    view, options = resolved_view(server_args), options_of(server_args)
    reason = adaptive_unsupported_reason(_WithoutOurs(view))
    reason = reason or _reason(lambda name: getattr(view, name))
    if options is None or options.stages.has_draft:
        reason = reason or _index_share_reason(server_args)
    if reason is None and options is not None and num_replicas(view) > 1:
        return joint_reason(view, options.config)
    return reason


def tree_refusal(server_args: ServerArgs) -> str | None:
    """Returns why a resolved server cannot draft trees: flag, value and what could; or None."""
    if not use_mla_backend(server_args):
        return None
    view = resolved_view(server_args)
    for name in ATTENTION_FLAGS:
        if (backend := getattr(view, name)) in CHAINS_ONLY_ON_MLA:
            flag = "--" + name.replace("_", "-")
            return f"{flag} {backend} drafts chains only on MLA; use fa3 or triton"
    return None


class _WithoutOurs:
    """The resolved arguments without what rules out the host's own switching and not ours.

    That is trees, attention DP, and what drafts as EAGLE does or instead of a draft model.

    Has no private names, so that the host's own views of it find no declarations above these.
    """

    def __init__(self, view: ServerArgs) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in OURS:
            return OURS[name]
        value = getattr(self._view, name)
        return LIKE_EAGLE.get(value, value) if name == "speculative_algorithm" else value


def _reason(read: Read) -> str | None:
    """The settings that the host's own list leaves out."""
    if (device := read("device")) not in (None, *DEVICES):
        return f"on device {device} tiers were never switched, only on {' and '.join(DEVICES)}"
    if read("disaggregation_mode") == "prefill":
        return "a PD prefill node (disaggregation_mode=prefill) decodes nothing"
    if (pp_size := read("pp_size")) > 1:
        return f"pipeline parallelism (pp_size={pp_size}) fixes the draft width on all stages"
    if (read("enable_lora") or read("lora_paths")) and read("lora_backend") in OWN_LORA_GRAPHS:
        return f"LoRA on --lora-backend {read('lora_backend')} was never run adaptive"
    if read("enable_hisparse"):
        return "HiSparse plans its cache for a fixed draft width"
    if read("enable_deterministic_inference"):
        return "deterministic inference needs batch shapes that do not change with the tier"
    if read("elastic_ep_backend") is not None:
        return "elastic expert parallelism captures the decode graphs anew while serving"
    if read("enable_two_batch_overlap"):
        return "two-batch overlap wraps the attention backend that a switch would replace"
    if read("enable_pdmux"):
        return "PD multiplexing holds attention backends that a switch does not reach"
    return None


def _index_share_reason(server_args: ServerArgs) -> str | None:
    """Drafts that look QSA's sparse indices up once for all their steps (INDEX_SHARE).

    DSA's may: each draft-extend hands its own on, as wide as the model says.
    """
    config = draft_config(server_args)
    # --json-model-override-args writes the outer one, checkpoints the inner one (sglang 0.5.23
    # speculative/eagle_worker_v2.py:_qsa_index_share_requested).
    configs = (config, getattr(config, "text_config", None))
    is_shared = any(getattr(each, INDEX_SHARE, False) for each in configs)
    if not is_shared or parse_qsa_profile(config) is None:
        return None
    return (
        f"the draft shares QSA's sparse indices across its steps ({INDEX_SHARE}), in a buffer "
        "as wide as they are many: tiers would not find each other's"
    )
