"""Lets the ranks of attention data parallelism run the same rounds: one row of each, before each.

SGLang gathers a row of integers of every rank before every round (sglang 0.5.23 managers/
scheduler_components/dp_attn.py:MLPSyncBatchInfo). It reads its own by their places and takes the
width from the row, so columns behind them cost no message more. loop/joint.py says what they hold.

By default it gathers twice: does any rank read prompts, and what does a decode round run. Both have
the columns; only the second's are written and read.
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
        self._row = torch.from_numpy(controller.row)
        self._nothing: dict[object, torch.Tensor] = {}  # by device
        self._is_about_decode = False
        self.described = NO_REQUESTS  # what the newest row was made of

    def install(self) -> None:
        """Hooks the host's gather."""
        hook_now(
            {
                "SchedulerDPAttnAdapter.maybe_prepare_mlp_sync_batch": self.prepare,
                "MLPSyncBatchInfo._get_local_tensor": self.add_row,
                "MLPSyncBatchInfo._get_fallback_tensor": self.add_nothing,
            }
        )
        hook_now({"MLPSyncBatchInfo.all_gather": self.take}, AFTER)

    def prepare(
        self,
        host: Callable[..., Any],
        adapter: object,
        batch: Batch | None,
        need_sync: bool | None = None,
        *args: object,
        **kwargs: object,
    ) -> Any:
        """Around maybe_prepare_mlp_sync_batch; about a decode round if the host says need_sync."""
        self._is_about_decode = need_sync is not None
        if need_sync:
            if batch is not None and batch.forward_mode.is_decode():
                self.described = self._describe(batch)
            else:
                self.described = NO_REQUESTS._replace(now_s=time.monotonic())
            self._controller.offer(self.described)
        return host(adapter, batch, need_sync, *args, **kwargs)

    def add_row(
        self, host: Callable[..., torch.Tensor], info: object, *args: object, **kwargs: object
    ) -> torch.Tensor:
        """Around _get_local_tensor: this rank's row."""
        own = host(info, *args, **kwargs)
        return torch.cat((own, self._row.to(own.device)))

    def add_nothing(
        self,
        host: Callable[..., torch.Tensor],
        info: object,
        device: object,
        *args: object,
        **kwargs: object,
    ) -> torch.Tensor:
        """Around _get_fallback_tensor: the row of a rank that is not there, always the same."""
        row = self._nothing.get(device)
        if row is None:
            own = host(info, device, *args, **kwargs)
            row = self._nothing[device] = torch.cat((own, own.new_zeros(len(self._row))))
        return row

    def take(self, result: object, info: Any, *_args: object, **_kwargs: object) -> object:
        """After all_gather: the rows of all ranks, this one's as well."""
        if self._is_about_decode:
            self._controller.take(info.tp0_info_cpu.numpy()[:, -len(self._controller.row) :])
        return result
