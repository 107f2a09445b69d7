"""A row of ours travels behind the host's, and the host never sees it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sglang_adaptive_spec.tiers import DecodeBatch

pytestmark = pytest.mark.usefixtures("plugins_loaded")

OF_HOST, OURS = 4, 3


class Controller:
    """Tells of a batch its size, and remembers the rows of all ranks."""

    def __init__(self) -> None:
        self.tables: list[list[list[int]]] = []
        self.row = np.zeros(OURS, np.int64)

    def offer(self, batch: DecodeBatch) -> None:
        self.row[:] = batch.size, 7, 8

    def take(self, table: Any) -> None:
        self.tables.append(table.tolist())


def made() -> tuple[Any, Controller]:
    from sglang_adaptive_spec.host.serving.agreement import Agreement

    controller: Any = Controller()
    return Agreement(controller, lambda batch: DecodeBatch(len(batch.reqs), ("a",))), controller


def decode_batch(size: int, is_decode: bool = True) -> Any:
    mode = SimpleNamespace(is_decode=lambda: is_decode)
    return SimpleNamespace(reqs=[None] * size, forward_mode=mode)


def own_row(_info: object, device: str, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """As the host makes its row."""
    return torch.arange(OF_HOST, device=device, dtype=dtype)


@pytest.mark.parametrize(
    ("batch", "size"),
    [(decode_batch(5), 5), (None, 0), (decode_batch(5, is_decode=False), 0)],
    ids=["decode", "none", "prompts"],
)
def test_a_row_tells_of_the_batch_that_ranks_gather_about(batch: Any, size: int) -> None:
    agreement, _ = made()
    rows = []

    def gather(_adapter: object, local: Any, _need_sync: object) -> Any:
        rows.append(agreement.add_row(own_row, None, "cpu").tolist())
        return local

    assert agreement.prepare(gather, None, batch, need_sync=True) is batch
    assert rows == [[0, 1, 2, 3, size, 7, 8]]
    assert agreement.described.size == size


def test_a_rank_that_is_not_there_has_a_row_as_wide_that_says_nothing() -> None:
    agreement, _ = made()
    for _ in range(2):
        agreement.prepare(lambda *_: None, None, decode_batch(5), need_sync=True)
        found = agreement.add_nothing(own_row, None, device="cpu")
        assert found.tolist() == [0, 1, 2, 3, 0, 0, 0]
    # The host chooses the device anew each time.
    assert agreement.add_nothing(own_row, None, device="meta").device.type == "meta"


def test_the_rows_of_all_ranks_are_taken_without_the_hosts_columns() -> None:
    agreement, controller = made()
    gathered = torch.arange(2 * (OF_HOST + OURS)).view(2, -1)

    def gather(*_: object) -> None:
        agreement.take(None, SimpleNamespace(tp0_info_cpu=gathered), "cpu", group=None)

    agreement.prepare(gather, None, decode_batch(5), need_sync=True)
    before, told = agreement.described, controller.row.tolist()
    controller.tables.clear()
    agreement.prepare(gather, None, None)  # does anybody read prompts?
    assert (controller.tables, agreement.described, controller.row.tolist()) == ([], before, told)
    agreement.prepare(gather, None, None, need_sync=True)
    assert controller.tables == [[[4, 5, 6], [11, 12, 13]]]


def test_the_host_reads_what_it_would_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the host's own `MLPSyncBatchInfo`, two ranks of one process."""
    from sglang.srt.managers.scheduler_components import dp_attn

    agreement, _ = made()
    fields = {field: 0 for field in dp_attn.MLPSyncBatchInfo.__dataclass_fields__}
    info = dp_attn.MLPSyncBatchInfo(
        **{**fields, "num_tokens": 3, "can_run_decode_cuda_graph": True, "local_forward_mode": 2}
    )
    bare = dp_attn.MLPSyncBatchInfo._get_local_tensor(info, device="cpu")
    ours = agreement.add_row(dp_attn.MLPSyncBatchInfo._get_local_tensor, info, device="cpu")
    assert ours[: len(bare)].tolist() == bare.tolist()
    assert len(ours) == len(bare) + OURS
