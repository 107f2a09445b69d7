"""Which algorithm serves a draft model: read from its config, before anything is loaded.

The host tells drafts by the name of their class. A whole model drafts beside the target under
STANDALONE; the host takes it for EAGLE, too, and nothing says that it ignores the target's hidden
states. Of whole models with MTP layers the host loads these alone: it gives the class another name
(sglang 0.5.23 configs/model_config.py:_config_draft_model), and so such a model is EAGLE's.
"""

import logging
import os
from typing import Any

from sglang.srt.configs.model_config import ModelConfig

from sglang_adaptive_spec.config.file import config_error
from sglang_adaptive_spec.host.server_args import ServerArgs
from sglang_adaptive_spec.host.sizes import draft_config, target_config

logger = logging.getLogger(__name__)

DRAFT_FLAG = "--speculative-draft-model-path"
# Parts of the names of draft classes (EntryClass in sglang 0.5.20 to 0.5.23 models/).
OF_EAGLE = ("Eagle", "MTP", "NextN", "Assistant", "Draft")
OF_OTHERS = {"DFlash": "DFLASH", "DSpark": "DSPARK"}  # and the algorithm that serves them
# How classes of whole models that write text end.
OF_WHOLE_MODELS = ("ForCausalLM", "ForConditionalGeneration")


def base_of_draft(server_args: ServerArgs) -> str:
    """Returns the algorithm that serves the draft.

    EAGLE-3 drafts say so, whole models draft under STANDALONE, others are EAGLE's.

    Raises:
        ConfigError: The draft is one of another algorithm.
    """
    path = server_args.speculative_draft_model_path
    if path is None:
        return "EAGLE"
    config = draft_config(server_args)
    architectures = getattr(config, "architectures", None) or [""]
    for part, algorithm in OF_OTHERS.items():
        if any(part in name for name in architectures):
            raise config_error(
                f"{DRAFT_FLAG} {path}",
                f"{architectures[0]} drafts for {algorithm}",
                "an EAGLE, EAGLE-3 or MTP draft, or a whole model",
                f"name such a draft, or pass --speculative-algorithm {algorithm}",
            )
    if _is_whole_model(server_args, config, architectures[0]):
        logger.warning(
            "ADAPTIVE_EAGLE takes the draft for a whole model (%s with %d layers): STANDALONE. If "
            "it is an EAGLE draft, set the config key base.",
            architectures[0],
            _num_layers(config),
        )
        return "STANDALONE"
    return "EAGLE3" if any("Eagle3" in name for name in architectures) else "EAGLE"


def check_whole_model(server_args: ServerArgs) -> None:
    """Refuses what cannot draft under STANDALONE, before weights are loaded.

    Raises:
        ConfigError: There is no draft model, its vocabulary is not the target's, or a token map
            would cut it, which the host does for EAGLE alone.
    """
    path = server_args.speculative_draft_model_path
    if path is None:
        raise config_error(
            DRAFT_FLAG,
            "not given",
            "a whole model, as base STANDALONE says",
            "name the small model",
        )
    token_map = server_args.speculative_token_map
    if token_map is not None:
        raise config_error(
            f"--speculative-token-map {token_map}",
            "given beside a whole model as the draft",
            "with an EAGLE draft only",
            "drop it",
        )
    mine = int(draft_config(server_args).vocab_size)
    wanted = int(target_config(server_args).vocab_size)
    if mine != wanted:
        raise config_error(
            f"{DRAFT_FLAG} {path}",
            f"a vocabulary of {mine} tokens",
            f"the target's, of {wanted}",
            "name a smaller model with the same vocabulary (embeddings of one family may be padded "
            "differently), or an EAGLE draft",
        )


def check_table(server_args: ServerArgs) -> None:
    """Refuses what a table of what was written cannot be served with.

    Raises:
        ConfigError: A draft model is named, or the node decodes what another has read: the host
            then relays a token alone, and its relay for NGRAM takes what a round accepted (sglang
            0.5.20 to 0.5.23 managers/overlap_utils.py:FutureMap.stash).
    """
    if server_args.disaggregation_mode == "decode":
        raise config_error(
            "--disaggregation-mode decode",
            "given beside base NGRAM, under which SGLang ends at the first request that arrives",
            "null",
            "serve this node with an EAGLE draft, or without --speculative-algorithm",
        )
    path = server_args.speculative_draft_model_path
    if path is not None:
        raise config_error(
            f"{DRAFT_FLAG} {path}",
            "given beside base NGRAM",
            "no draft model: a table of what was written drafts",
            "drop the flag, or the config key base",
        )


def _is_whole_model(server_args: ServerArgs, config: Any, architecture: str) -> bool:
    """Says whether a draft has a class of whole models, and as many layers.

    EAGLE drafts were published under the class of their target, with one layer.
    """
    path = server_args.speculative_draft_model_path
    assert path is not None, "the caller read its config"
    if (
        not architecture.endswith(OF_WHOLE_MODELS)
        or any(part in architecture for part in OF_EAGLE)
        or _num_layers(config) == 1
        or os.path.realpath(path) == os.path.realpath(server_args.model_path)
    ):
        return False
    loaded = ModelConfig(
        path,
        trust_remote_code=server_args.trust_remote_code,
        revision=server_args.speculative_draft_model_revision,
        is_draft_model=True,
    )
    return architecture in loaded.hf_config.architectures


def _num_layers(config: Any) -> int:
    return int(getattr(getattr(config, "text_config", config), "num_hidden_layers", 1))
