"""Lets the ranks of attention data parallelism run the same rounds: one row of each, before each.

SGLang gathers a row of integers of every rank before every round (sglang 0.5.23 managers/
scheduler_components/dp_attn.py:MLPSyncBatchInfo). It reads its own by their places and takes the
width from the row, so columns behind them cost no message more. loop/joint.py says what they hold.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from sglang_adaptive_spec.host.batch import Batch
from sglang_adaptive_spec.host.hooks import AFTER, hook_now
from sglang_adaptive_spec.loop.joint import JointController
from sglang_adaptive_spec.tiers import DecodeBatch

NO_REQUESTS = DecodeBatch(0, ())


class Agreement:
    """Sends this rank's row with the host's, and hands those of all ranks to the controller."""

    def __init__(
        self, controller: JointController, describe: Callable[[Batch], DecodeBatch]
    ) -> None:
        """Takes whose rows they are, and what tells the controller of a decode batch."""
        self._controller, self._describe = controller, describe
        self._row = torch.from_numpy(controller.offer(NO_REQUESTS))
        self._nothing = torch.zeros_like(self._row)
        self.described = NO_REQUESTS  # what the newest row was made of

    def install(self) -> None:
        """Hooks the host's gather."""
        hook_now(
            {
                "SchedulerDPAttnAdapter.prepare_mlp_sync_batch": self.prepare,
                "MLPSyncBatchInfo._get_local_tensor": self.add_row,
                "MLPSyncBatchInfo._get_fallback_tensor": self.add_nothing,
            }
        )
        hook_now({"MLPSyncBatchInfo.all_gather": self.take}, AFTER)

    def prepare(
        self,
        host: Callable[..., Any],
        adapter: object,
        local_batch: Batch | None,
        *args: object,
        **kwargs: object,
    ) -> Any:
        """Around prepare_mlp_sync_batch, before each round and each prefill."""
        if local_batch is not None and local_batch.forward_mode.is_decode():
            self.described = self._describe(local_batch)
        else:
            self.described = NO_REQUESTS._replace(now_s=time.monotonic())
        self._row = torch.from_numpy(self._controller.offer(self.described))
        return host(adapter, local_batch, *args, **kwargs)

    def add_row(
        self, host: Callable[..., torch.Tensor], info: object, *args: object, **kwargs: object
    ) -> torch.Tensor:
        """Around _get_local_tensor: this rank's row."""
        own = host(info, *args, **kwargs)
        return torch.cat((own, self._row.to(own.device)))

    def add_nothing(
        self, host: Callable[..., torch.Tensor], info: object, *args: object, **kwargs: object
    ) -> torch.Tensor:
        """Around _get_fallback_tensor: the row of a rank that is not there."""
        own = host(info, *args, **kwargs)
        return torch.cat((own, self._nothing.to(own.device)))

    def take(self, result: object, info: Any, *_args: object, **_kwargs: object) -> object:
        """After all_gather: the rows of all ranks, this one's as well."""
        self._controller.take(info.tp0_info_cpu[:, -len(self._row) :].numpy())
        return result
