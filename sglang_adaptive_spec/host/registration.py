"""Puts the plugin in place: the public name, and the hooks through the host's own HookRegistry."""

from collections.abc import Callable
from typing import Any, NoReturn

from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_server_args
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_adaptive_spec.contract.table import HOOK_TARGETS
from sglang_adaptive_spec.host.launch.options import ALGORITHM, options_of
from sglang_adaptive_spec.host.server_args import Scheduler, ServerArgs


def register_sentinel(reason: str) -> None:
    """Registers the public name so that reaching it unresolved stops the start with ``reason``."""

    def refuse(_server_args: object) -> NoReturn:
        raise ValueError(reason)

    SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, validate_server_args=refuse)(
        refuse
    )


def install_hooks(serves: bool) -> None:
    """Registers every hook that this process may need; the host applies them after all plugins."""

    def register(name: str, hook: Callable[..., Any], kind: HookType) -> None:
        HookRegistry.register(HOOK_TARGETS[name], hook, kind)

    around, after = HookType.AROUND, HookType.AFTER
    register("ServerArgs.resolve_once", _resolve_once, around)
    # A step of resolution, which the host lets plugins wrap by its last name.
    register_resolution_hook("handle_speculative_decoding")(_resolve_speculative)
    if not serves:
        return
    register("SpeculativeAlgorithm.create_worker", _create_worker, around)
    register("Scheduler.get_internal_state", _internal_state, after)
    register("Scheduler.set_internal_state", _set_internal_state, around)
    register("Scheduler.get_init_info", _init_info, after)
    register("TokenizerManager._create_tokenized_object", _check_request, after)
    register("TokenizerManager._calculate_spec_decoding_metrics", _accept_rate, after)
    register("compute_num_reserved_tokens", _reserved_tokens, after)
    register("Engine._launch_scheduler_processes", _launch_schedulers, around)


# The hooks import what they need when first called: a process that never asks for ADAPTIVE_EAGLE
# loads none of it.


def _resolve_once(
    resolve: Callable[..., Any], server_args: ServerArgs, *args: object, **kw: object
) -> Any:
    if (server_args.speculative_algorithm or "").upper() != ALGORITHM:
        return resolve(server_args, *args, **kw)
    from sglang_adaptive_spec.host.launch.arguments import resolve_adaptive

    return resolve_adaptive(lambda: resolve(server_args, *args, **kw), server_args)


def _resolve_speculative(server_args: ServerArgs, host_step: Callable[[Any], None]) -> None:
    if options_of(server_args) is None:
        host_step(server_args)
        return
    from sglang_adaptive_spec.host.launch.request_cap import raise_request_cap

    raise_request_cap(server_args, host_step)


def _create_worker(
    create: Callable[..., Any],
    algorithm: object,
    server_args: ServerArgs,
    *args: object,
    **kw: object,
) -> Any:
    host_class = create(algorithm, server_args, *args, **kw)
    options = options_of(server_args)
    if options is None or options.static_reason is not None:
        return host_class
    from sglang_adaptive_spec.host.serving.workers import worker_class

    return worker_class(host_class)


def _internal_state(result: Any, scheduler: Scheduler, *_args: object, **_kw: object) -> Any:
    if options_of(scheduler.server_args) is None:
        return result
    from sglang_adaptive_spec.host.reporting.telemetry import add_internal_state

    return add_internal_state(result, scheduler)


def _set_internal_state(
    host: Callable[..., Any], scheduler: Scheduler, *args: object, **kw: object
) -> Any:
    if options_of(scheduler.server_args) is None:
        return host(scheduler, *args, **kw)
    from sglang_adaptive_spec.host.reporting.control import set_internal_state

    return set_internal_state(host, scheduler, *args, **kw)


def _init_info(
    info: dict[str, Any], scheduler: Scheduler, *_args: object, **_kw: object
) -> dict[str, Any]:
    if options_of(scheduler.server_args) is None:
        return info
    from sglang_adaptive_spec.host.launch.ready import add_worker_name

    return add_worker_name(info, scheduler)


def _check_request(result: Any, manager: Any, *_args: object, **_kw: object) -> Any:
    options, params = options_of(manager.server_args), result.sampling_params
    if options is not None and params is not None and params.custom_params:
        from sglang_adaptive_spec.host.serving.admission import check_request

        check_request(params.custom_params, options.config, options.static_reason)
    return result


def _accept_rate(
    result: Any, manager: Any, meta_info: dict[str, Any], answer: Any, place: int, *_args: object
) -> Any:
    options = options_of(manager.server_args)
    if options is not None and options.static_reason is None:
        from sglang_adaptive_spec.host.reporting.host_figures import set_accept_rate
        from sglang_adaptive_spec.host.serving.admission import show_settings

        set_accept_rate(meta_info, answer, place)
        show_settings(meta_info, manager, answer.rids[place], options.config)
    return result


def _reserved_tokens(result: int, *_args: object, **_kw: object) -> int:
    options = options_of(get_server_args())
    if options is None or options.static_reason is not None:
        return result
    from sglang_adaptive_spec.host.launch.length_check import reserved_tokens

    return reserved_tokens(options.config.ladder)


def _launch_schedulers(
    launch: Callable[..., Any], engine: object, server_args: ServerArgs, *args: object, **kw: object
) -> Any:
    launched = launch(engine, server_args, *args, **kw)
    options = options_of(server_args)
    if options is None or options.static_reason is not None:
        return launched
    from sglang_adaptive_spec.host.launch.ready import require_adaptive_workers

    return require_adaptive_workers(launched, server_args)
