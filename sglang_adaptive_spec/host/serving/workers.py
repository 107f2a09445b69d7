"""Which worker of ours serves instead of one of the host's."""

from importlib import import_module
from typing import Any

# By the name of the host's class. Ours derives from it, so a module is imported only where its
# class serves: each needs kernels of its own.
SERVING = "sglang_adaptive_spec.host.serving"
WORKERS = {
    "EAGLEWorkerV2": (f"{SERVING}.worker", "AdaptiveEagleWorker"),
    "StandaloneWorkerV2": (f"{SERVING}.worker", "AdaptiveStandaloneWorker"),
    "NGRAMWorker": (f"{SERVING}.ngram_worker", "AdaptiveNgramWorker"),
}


def worker_class(host_class: type[Any]) -> type[Any]:
    """Returns the worker that serves instead of ``host_class``.

    Raises:
        RuntimeError: Another plugin or platform serves the algorithm with a class of its own.
    """
    if host_class.__name__ in WORKERS:
        module, name = WORKERS[host_class.__name__]
        ours: type[Any] = vars(import_module(module))[name]
        if host_class in ours.__bases__:
            return ours
    needed = " or ".join(WORKERS)
    raise RuntimeError(
        f"ADAPTIVE_EAGLE needs the host's {needed} and got {host_class.__name__}: "
        "remove the plugin that replaces it, or serve with SGLang's own algorithm."
    )
