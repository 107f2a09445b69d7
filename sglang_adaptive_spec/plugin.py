"""Entry point of the group ``sglang.srt.plugins``: the host calls `register` in every process.

The host logs and swallows what a plugin raises, so a plugin that fails quietly would leave a
server in another mode than asked for. The registered algorithm therefore is a sentinel that
refuses with the reason; a working plugin rewrites the name before the host ever reaches it.
"""

import copyreg
import logging
from dataclasses import fields
from typing import Any

logger = logging.getLogger(__name__)

_registered = False


def register(serves: bool = True) -> None:
    """Checks the host's contract and installs the hooks; a second call does nothing.

    Without ADAPTIVE_EAGLE the hooks pass everything through, so SGLang behaves as without us.

    Args:
        serves: Else this process only reads arguments, and hooks of what serves are left out: the
            host would import its scheduler to apply them.
    """
    global _registered
    if _registered:
        return
    _registered = True
    from sglang_adaptive_spec.contract.check import installed_report
    from sglang_adaptive_spec.host import registration
    from sglang_adaptive_spec.host.launch.options import AdaptiveOptions

    copyreg.pickle(AdaptiveOptions, reduce_options)
    report = installed_report()
    if not report.ok:
        logger.error(report.message)
        registration.register_sentinel(report.message)
        return
    if not report.in_window:
        logger.warning(report.message)
    registration.register_sentinel(
        "ADAPTIVE_EAGLE reached the host unresolved: the hooks of sglang_adaptive_spec were not "
        "applied in this process. Call sglang.srt.plugins.load_plugins() before ServerArgs is "
        "resolved, or start through sglang.launch_server, `sglang serve` or sgl.Engine."
    )
    registration.install_hooks(serves)


def reduce_options(options: Any) -> tuple[Any, ...]:
    """Pickles an `AdaptiveOptions` as a call of `restore`."""
    return restore, tuple(getattr(options, field.name) for field in fields(options))


def restore(*values: Any) -> Any:
    """Unpickles an `AdaptiveOptions`: registers the plugin in the process that it reaches."""
    from sglang_adaptive_spec.host.launch.options import AdaptiveOptions

    register()
    return AdaptiveOptions(*values)
