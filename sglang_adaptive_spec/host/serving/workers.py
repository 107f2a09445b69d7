"""Which worker of ours serves instead of one of the host's."""

from typing import Any

from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.ngram_worker import NGRAMWorker
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

from sglang_adaptive_spec.host.serving.ngram_worker import AdaptiveNgramWorker
from sglang_adaptive_spec.host.serving.worker import AdaptiveEagleWorker, AdaptiveStandaloneWorker

WORKERS: dict[type[Any], type[Any]] = {
    EAGLEWorkerV2: AdaptiveEagleWorker,
    StandaloneWorkerV2: AdaptiveStandaloneWorker,
    NGRAMWorker: AdaptiveNgramWorker,
}


def worker_class(host_class: type[Any]) -> type[Any]:
    """Returns the worker that serves instead of ``host_class``.

    Raises:
        RuntimeError: Another plugin or platform serves the algorithm with a class of its own.
    """
    ours = WORKERS.get(host_class)
    if ours is None:
        needed = " or ".join(each.__name__ for each in WORKERS)
        raise RuntimeError(
            f"ADAPTIVE_EAGLE needs the host's {needed} and got {host_class.__name__}: "
            "remove the plugin that replaces it, or serve with SGLang's own algorithm."
        )
    return ours
