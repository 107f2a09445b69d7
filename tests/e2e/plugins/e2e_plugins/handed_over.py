"""A decode node alone, whose requests arrive as if a prefill node had handed them over.

SGLang's fake transfer writes nothing, so prompts would attend to what their slots held before. Here
each slot of a prompt gets numbers that depend on its place and layer alone: the same on every
server. What is said then depends on them, on the first token, which SGLang makes of the request's
id, and on all that was said since.
"""

from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

INIT = "sglang.srt.managers.scheduler.Scheduler.init_disaggregation"
SENT = "sglang.srt.disaggregation.fake.conn.FakeKVReceiver.send_metadata"
STD = 0.5
MAX_PROMPT = 1024

schedulers: list[Any] = []


def register() -> None:
    HookRegistry.register(INIT, remember, HookType.AFTER)
    HookRegistry.register(SENT, fill, HookType.AFTER)


def remember(_result: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    schedulers.append(scheduler)


def fill(_result: Any, _receiver: Any, slots: Any, *_args: Any, **_kwargs: Any) -> None:
    (scheduler,) = schedulers
    pool = scheduler.tp_worker.model_runner.token_to_kv_pool
    places = torch.as_tensor(slots, dtype=torch.int64)
    for layer, buffers in enumerate(zip(pool.k_buffer, pool.v_buffer, strict=True)):
        generator = torch.Generator().manual_seed(layer)
        for buffer in buffers:
            shape = (MAX_PROMPT, *buffer.shape[1:])
            prompt = STD * torch.randn(shape, generator=generator, dtype=torch.float32)
            buffer[places] = prompt[: len(places)].to(buffer.dtype)
