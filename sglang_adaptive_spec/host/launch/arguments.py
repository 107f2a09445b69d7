"""Rewrites ADAPTIVE_EAGLE to one of the host's algorithms before ServerArgs is resolved.

Some 45 sites of the host compare the algorithm's name, so the name must be a builtin one by the
time anything is resolved. Resolution runs at the largest tier, which sizes KV reserve, request
slots and graph buffers right with no further hook. If the resolved settings turn out to rule out
switching, resolution is run again with the user's own values: a static server must not draft at
the largest tier.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sglang.srt.arg_groups.overrides import resolved_view

from sglang_adaptive_spec.config.file import config_error
from sglang_adaptive_spec.config.schema import ConfigError, load_config, named_flags
from sglang_adaptive_spec.host.launch import unsupported
from sglang_adaptive_spec.host.launch.attention_dp import most_tokens, within_limit
from sglang_adaptive_spec.host.launch.drafts import (
    base_of_draft,
    check_table,
    check_whole_model,
)
from sglang_adaptive_spec.host.launch.options import ALGORITHM, ATTRIBUTE, AdaptiveOptions
from sglang_adaptive_spec.host.server_args import ServerArgs
from sglang_adaptive_spec.tiers import chain_tier

logger = logging.getLogger(__name__)

# In the order of a tier's fields.
TIER_FIELDS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
SPECULATIVE_FIELDS = ("speculative_algorithm", *TIER_FIELDS)
# Of what drafts, before anything is loaded.
CHECKS = {"STANDALONE": check_whole_model, "NGRAM": check_table}
TREES_REFUSED = "candidate_tiers lists trees (topk above 1), and {}; or list chains only."


def resolve_adaptive(resolve: Callable[[], Any], server_args: ServerArgs) -> Any:
    """Resolves ``server_args`` (name: ADAPTIVE_EAGLE) at the largest tier, or static.

    Args:
        resolve: The host's own resolution of ``server_args``.
        server_args: The raw record; not resolved yet.

    Raises:
        ConfigError: The config file or a flag is wrong.
    """
    options = read_options(server_args)
    if options.static_reason is None:
        bookkeeping = dict(server_args.__dict__)
        user_values = {name: getattr(server_args, name) for name in SPECULATIVE_FIELDS}
        _write_tier(server_args, options)
        result = _resolve_trees(resolve, server_args, options)
        reason = unsupported.resolved_reason(server_args)
        if reason is None:
            _check_trees(server_args, options)
            # Only now: what names no tier does not matter to a server that cannot switch.
            resolved = getattr(server_args, ATTRIBUTE)  # request_cap.py may have added to it
            limit = most_tokens(resolved_view(server_args))
            config = within_limit(resolved.config, limit)
            resolved = replace(resolved, config=config, most_tokens=limit)
            setattr(server_args, ATTRIBUTE, _with_initial(resolved, user_values))
            return result
        # The raw fields are sealed while the host resolves, so putting the bookkeeping and our own
        # four writes back gives the unresolved record again.
        server_args.__dict__.clear()
        server_args.__dict__.update(bookkeeping)
        for name, value in user_values.items():
            setattr(server_args, name, value)
        options = replace(options, static_reason=reason)
    _write_static(server_args, options)
    return resolve()


def _resolve_trees(
    resolve: Callable[[], Any], server_args: ServerArgs, options: AdaptiveOptions
) -> Any:
    """Resolves; the host's refusal of trees is said in the words of the config key.

    Raises:
        ConfigError: The config has trees, and the host refuses them.
    """
    try:
        return resolve()
    except (ValueError, AssertionError, NotImplementedError) as error:
        if options.startup_tier.topk == 1 or "topk" not in str(error):
            raise
        raise ConfigError(TREES_REFUSED.format(f"SGLang refuses them here: {error}")) from error


def _check_trees(server_args: ServerArgs, options: AdaptiveOptions) -> None:
    """Refuses trees on a backend that would end the scheduler at its start.

    Raises:
        ConfigError: A backend of the resolved arguments drafts chains only.
    """
    if options.startup_tier.topk > 1:
        refusal = unsupported.tree_refusal(server_args)
        if refusal is not None:
            raise ConfigError(TREES_REFUSED.format(refusal))


def read_options(server_args: ServerArgs) -> AdaptiveOptions:
    """Reads config, base and initial steps from the raw arguments.

    Raises:
        ConfigError: The config file or a flag is wrong; nothing has been written.
    """
    if server_args.speculative_adaptive:
        raise ConfigError(
            "--speculative-adaptive was given together with --speculative-algorithm "
            f"{ALGORITHM}; they are two controllers of the same thing: drop --speculative-adaptive."
        )
    config = load_config(server_args.speculative_adaptive_config)
    base = config.base or base_of_draft(server_args)
    if (check := CHECKS.get(base)) is not None:
        check(server_args)
    is_listed = config.has_tier([getattr(server_args, name) for name in TIER_FIELDS])
    has_trees = any(tier.topk > 1 for tier in config.tiers)
    if has_trees and base == "NGRAM":
        raise ConfigError(TREES_REFUSED.format("the table itself says where NGRAM's trees branch"))
    reason = unsupported.raw_reason(server_args, is_listed, has_trees)
    return AdaptiveOptions(config, base, server_args.speculative_num_steps, reason)


def _with_initial(options: AdaptiveOptions, user_values: Mapping[str, Any]) -> AdaptiveOptions:
    """Adds the tier to start at, which the user's own numbers may name.

    Raises:
        ConfigError: They name none of the config's tiers.
    """
    initial = options.config.starting_tier(*(user_values[name] for name in TIER_FIELDS))
    config = replace(options.config, initial=initial)
    return replace(options, config=config, initial_steps=initial.num_steps)


def _write_tier(server_args: ServerArgs, options: AdaptiveOptions) -> None:
    _write(server_args, options, options.startup_tier)


def _write(
    server_args: ServerArgs, options: AdaptiveOptions, numbers: Sequence[int | None]
) -> None:
    """Writes base, numbers and options.

    A table's tier is its nodes. Steps and topk of NGRAM are what the host makes of them and of the
    table's breadth, and it reserves slots for their product (sglang 0.5.20 to 0.5.23
    arg_groups/speculative_hook.py:_handle_ngram).
    """
    if options.base == "NGRAM":
        numbers = (None, None, numbers[-1])
    server_args.speculative_algorithm = options.base
    for name, value in zip(TIER_FIELDS, numbers, strict=True):
        setattr(server_args, name, value)
    setattr(server_args, ATTRIBUTE, options)


def _write_static(server_args: ServerArgs, options: AdaptiveOptions) -> None:
    """Writes the user's numbers, or none: then the host picks its own default.

    Raises:
        ConfigError: It cannot be served with the user's numbers.
    """
    given = [getattr(server_args, name) for name in TIER_FIELDS]
    allowed = _static_limit(*given)
    if allowed is not None:
        raise config_error(
            f"static {options.base} ({options.static_reason})",
            f"cannot be served with {named_flags(given)}",
            allowed,
            "pass such numbers, or drop these flags for SGLang's own default",
        )
    _write(server_args, options, _all_or_none(*given))
    logger.warning(
        "ADAPTIVE_EAGLE serves static %s with %s: %s. The text is the same, the depth stays fixed.",
        options.base,
        _numbers_text(server_args),
        options.static_reason,
    )


def _static_limit(
    num_steps: int | None, topk: int | None, num_draft_tokens: int | None
) -> str | None:
    """Returns what a static server allows where it cannot have these numbers, or None."""
    if topk is not None and topk < 1:
        return "--speculative-eagle-topk from 1"
    if topk is not None and topk > 1 and None in (num_steps, num_draft_tokens):
        return "a topk above 1 beside --speculative-num-steps and --speculative-num-draft-tokens"
    if (num_steps is not None and num_steps < 1) or (
        num_draft_tokens is not None and num_draft_tokens < 2
    ):
        return "at least 1 step, which is 2 draft tokens, since it then drafts in every round"
    if topk in (None, 1) and None not in (num_steps, num_draft_tokens):
        assert num_steps is not None, "just asked"
        if num_draft_tokens != chain_tier(num_steps).num_draft_tokens:
            return f"{num_steps + 1} draft tokens (steps + 1) without a topk above 1"
    return None


def _all_or_none(
    num_steps: int | None, topk: int | None, num_draft_tokens: int | None
) -> Sequence[int | None]:
    """Completes a chain: the host's EAGLE ends in an assertion at a part of the three.

    Seen in sglang 0.5.23 arg_groups/speculative_hook.py:_handle_eagle_family.
    """
    if topk is not None and topk > 1:
        return num_steps, topk, num_draft_tokens
    if num_steps is None and num_draft_tokens is not None:
        num_steps = num_draft_tokens - 1
    return (None, None, None) if num_steps is None else chain_tier(num_steps)


def _numbers_text(server_args: ServerArgs) -> str:
    given = [getattr(server_args, name) for name in TIER_FIELDS]
    return "the host's default step count" if given == [None] * 3 else named_flags(given)
