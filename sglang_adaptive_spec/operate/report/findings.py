"""What stands out, in sentences, each with what to do about it.

Every bound below is a choice: what an operator would want to be told.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sglang_adaptive_spec.operate.report.hindsight import Hindsight
from sglang_adaptive_spec.operate.spans import PLAIN, Span, total

MOSTLY = 0.5  # of the rounds
MUCH_REJECTED = 0.7  # of the drafts
OFF = 0.1  # measured over expected, beside 1
MUCH_PROBING = 0.02  # of the time
MUCH_PREFILL = 0.3  # of the time
MANY_SWITCHES = 0.2  # of the rounds
SLOW = 0.7  # of the median speed of a request
LEAST_SPANS = 5  # to have a median
MUCH_REGRET = 0.03


APART = 0.1  # of the median

# What slows a request down, and whether more of it (1) or less (-1) does.
SLOWS: tuple[tuple[str, Callable[[Span], float], int], ...] = (
    ("batch", lambda span: span.batch, 1),
    ("accept length", lambda span: span.accept_length or 1.0, -1),
    ("share of prefill", lambda span: span.prefill_ms / 1e3 / span.seconds, 1),
    ("waiting a round", lambda span: span.waiting / max(span.num_rounds, 1), 1),
    ("busy share", lambda span: sum(span.ms.values()) / 1e3 / span.seconds, -1),
)


class Finding(NamedTuple):
    """One sentence, and what to do."""

    what: str
    fix: str


def findings(
    spans: Sequence[Span], hindsight: Hindsight | None, times: Sequence[str]
) -> list[Finding]:
    """Returns what stands out of ``spans``, whose starts are called ``times``."""
    whole = total(spans)
    return [
        *_of_drafts(whole),
        *_of_costs(whole),
        *_of_load(whole),
        *_of_slow(spans, times),
        *_of_hindsight(hindsight, whole.packed),
    ]


def _of_drafts(whole: Span) -> Iterator[Finding]:
    plain = whole.rounds.get(PLAIN, 0) / max(whole.num_rounds, 1)
    if plain > MOSTLY:
        yield Finding(
            f"{plain:.0%} of the rounds drafted nothing: drafts rarely paid.",
            "`sglang-adaptive-spec explain --server URL` says from which acceptance on they do. "
            "A draft head trained on this traffic would raise it (docs/policy.md).",
        )
    if whole.proposed:
        rejected = 1 - whole.correct / whole.proposed
        if rejected > MUCH_REJECTED:
            yield Finding(
                f"{rejected:.0%} of {whole.proposed:,} drafts were rejected, "
                f"{whole.proposed - whole.correct:,} in vain.",
                "That can still pay where rounds are cheap; if tokens/s disappoint, the draft does "
                "not fit this traffic.",
            )
    if whole.num_rounds and whole.switches > MANY_SWITCHES * whole.num_rounds:
        yield Finding(
            f"The tier changed in {whole.switches / whole.num_rounds:.0%} of the rounds.",
            "Tiers that tie alternate harmlessly; fewer candidate_steps would end it.",
        )


def _of_costs(whole: Span) -> Iterator[Finding]:
    tokens, ms, expected_tokens, expected_ms = whole.expected
    if min(whole.expected) > 0:
        for name, measured, expected in (
            ("Rounds took", ms, expected_ms),
            ("Rounds gave", tokens, expected_tokens),
        ):
            if abs(measured / expected - 1) > OFF:
                fix = (
                    "See that nothing else uses the GPU. To measure round times anew, delete the "
                    "folder sglang-adaptive-spec in the user's cache and restart."
                )
                if name == "Rounds gave":
                    fix = "Requests differ within a batch, or change as they go on."
                yield Finding(
                    f"{name} {measured / expected:.2f} times what the policy expected.", fix
                )
    if ms and whole.probe_ms > MUCH_PROBING * ms:
        yield Finding(
            f"Probes took {whole.probe_ms / ms:.1%} of the rounds' time.",
            "Long for a steady load: acceptance or batch keep changing.",
        )
    if whole.faults:
        yield Finding(
            f"{whole.faults} failures were survived.",
            "See the server's log and `fallbacks` in /server_info (docs/monitoring.md).",
        )


def _of_load(whole: Span) -> Iterator[Finding]:
    if whole.retractions:
        yield Finding(
            f"{whole.retractions} requests were put back for want of KV memory and prefilled anew.",
            "Lower --max-running-requests, or give more memory with --mem-fraction-static.",
        )
    if whole.waiting:
        yield Finding(
            f"Requests waited: {whole.waiting / max(whole.num_rounds, 1):.1f} a round, at most "
            f"{whole.most_waiting}.",
            "While any waits, zero-step rounds run single decodes. If memory allows, raise "
            "--max-running-requests.",
        )
    share = whole.prefill_ms / 1e3 / whole.seconds
    if share > MUCH_PREFILL:
        yield Finding(
            f"Prefill took {share:.0%} of the time.",
            "Decoding waits for it whatever the tier: smaller --chunked-prefill-size, or prefill "
            "on servers of its own.",
        )


def _of_slow(spans: Sequence[Span], times: Sequence[str]) -> Iterator[Finding]:
    """Says why the slowest stretch was slow, compared with the median."""
    speeds = [span.tokens / span.seconds / max(span.batch, 1) for span in spans]
    busy = [idx for idx, span in enumerate(spans) if span.num_rounds > 1]
    if len(busy) < LEAST_SPANS:
        return
    median = statistics.median(speeds[idx] for idx in busy)
    slowest = min(busy, key=lambda idx: speeds[idx])
    if speeds[slowest] >= SLOW * median:
        return
    reasons = []
    for what, value, sign in SLOWS:
        is_now, usual = value(spans[slowest]), statistics.median(value(spans[i]) for i in busy)
        if sign * (is_now - usual) > APART * max(usual, APART):
            reasons.append(f"{what} {is_now:.2f} beside {usual:.2f}")
    yield Finding(
        f"At {times[slowest]} a request got {speeds[slowest]:.1f} tokens/s, the median is "
        f"{median:.1f}: {'; '.join(reasons) or 'nothing that is kept explains it'}.",
        "A larger batch shares the GPU; a lower accept length is the text; a lower busy share "
        "means that there was less to do.",
    )


def _of_hindsight(hindsight: Hindsight | None, num_packed: int) -> Iterator[Finding]:
    if hindsight is None:
        if num_packed:
            yield Finding(
                "No regret is computed: rounds were packed, and their times are not their tier's.",
                "Nothing to do.",
            )
        return
    how = "An estimate" if hindsight.oracle is None else "Computed from the trace"
    better = max(hindsight.best, hindsight.oracle or 0.0)
    who = hindsight.best_name if better == hindsight.best else "an oracle that changes tiers"
    sentence = (
        f"{how}: it served {hindsight.served:,.0f} tokens/s, {who} would have served "
        f"{better:,.0f}: a regret of {hindsight.regret:.1%} (round times: {hindsight.origin})."
    )
    fix = "Nothing to do."
    if hindsight.regret > MUCH_REGRET:
        fix = "`sglang-adaptive-spec pin URL TIER` tries a tier; `explain --server` says which."
    yield Finding(sentence, fix)
