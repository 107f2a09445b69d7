"""A request's own accept rate, in the process that answers it (host/reporting/host_figures.py)."""

from typing import Any

RATE = "spec_accept_rate"
PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts")  # 0.5.20 has both names


def set_accept_rate(meta_info: dict[str, Any], answer: Any, place: int) -> None:
    """Puts the drafts that were proposed where the host put verifies times the largest tier's.

    Args:
        meta_info: of the request; as the host filled it.
        answer: of the scheduler, for several requests.
        place: of the request among them.
    """
    if PROPOSED[0] not in meta_info or not answer.spec_num_block_accept_tokens:
        return
    proposed = answer.spec_num_block_accept_tokens[place]
    for name in meta_info.keys() & set(PROPOSED):
        meta_info[name] = proposed
    meta_info[RATE] = answer.spec_num_correct_drafts[place] / proposed if proposed else 0.0
