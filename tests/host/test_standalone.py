"""A whole model as the draft: no hidden state leaves a draft-extend."""

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("plugins_loaded")


def test_what_a_graph_returns_of_hidden_states_is_not_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Graphs return some, prefill does not: a merged batch would keep those of some rows."""
    from sglang_adaptive_spec.host.drafters.eagle import AdaptiveDraftWorker
    from sglang_adaptive_spec.host.drafters.standalone import AdaptiveStandaloneDraftWorker

    def extend(_draft: object, _batch: object, result: Any) -> None:
        result.next_draft_input.topk_p = "proposals"
        result.next_draft_input.hidden_states = "of a graph"

    monkeypatch.setattr(AdaptiveDraftWorker, "_draft_extend_for_decode", extend)
    draft: Any = object.__new__(AdaptiveStandaloneDraftWorker)
    result = SimpleNamespace(next_draft_input=SimpleNamespace())
    draft._draft_extend_for_decode(None, result)
    assert vars(result.next_draft_input) == {"topk_p": "proposals", "hidden_states": None}
