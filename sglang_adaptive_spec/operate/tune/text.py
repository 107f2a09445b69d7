"""What was found as text, as plain data, and as an adaptive_spec.json with its provenance."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from sglang_adaptive_spec import __version__
from sglang_adaptive_spec.operate.tune.blocks import SEEDS, Gain
from sglang_adaptive_spec.operate.tune.search import LEAST_GAIN, Tried, Tuned
from sglang_adaptive_spec.operate.tune.source import Source

NOTHING = "Nothing to gain"
UNSEEN = "on blocks that did not choose it"


def as_data(tuned: Tuned, source: Source) -> dict[str, Any]:
    """Returns all of it; plain builtins only."""
    return {
        "rounds": source.rounds_of,
        "num_rounds": len(source.trace.rounds),
        "costs": source.costs_of,
        "is_better": tuned.is_better,
        "gain": _gain(tuned.gain),
        "ranges": {str(bound): list(steps) for bound, steps in tuned.best.ranges},
        "default": {str(bound): list(steps) for bound, steps in tuned.default.ranges},
        "not_measured": not_measured(tuned, source),
        "tiers": [
            {
                "steps": use.steps,
                "share_of_rounds": use.share,
                "without": use.without and _gain(use.without),
                "build_gb": source.built.get(use.steps, (None, None))[0],
                "build_s": source.built.get(use.steps, (None, None))[1],
            }
            for use in tuned.uses
        ],
        "tried": [_tried(each) for each in tuned.tried],
        "settings": [_tried(each) for each in tuned.settings],
        "lean": tuned.lean and _tried(tuned.lean),
    }


def not_measured(tuned: Tuned, source: Source) -> list[int]:
    """Returns the steps of the best whose round times lie on a line through others."""
    return [steps for steps in tuned.best.steps if steps not in source.measured]


def render(tuned: Tuned, source: Source) -> str:
    """Returns it as text."""
    return "\n".join(_lines(tuned, source))


def _lines(tuned: Tuned, source: Source) -> Iterator[str]:
    yield f"rounds: {len(source.trace.rounds):,} of {source.rounds_of}"
    yield f"costs: {source.costs_of}"
    yield ""
    yield "steps  share of rounds  tokens/s without it        GB   start-up s"
    for use in tuned.uses:
        without = "-" if use.without is None else _text(use.without)
        gb, s = source.built.get(use.steps, (None, None))
        built = f"{'-' if gb is None else f'{gb:.2f}':>6} {'-' if s is None else f'{s:.1f}':>12}"
        yield f"{use.steps:>5}  {use.share:>15.1%}  {without:<24} {built}"
    yield ""
    yield "tried, each over what was kept (+) before:"
    for each in tuned.tried:
        yield _line(each)
    most = max(tuned.settings, key=lambda each: each.gain.mean)
    yield _line(most, f"of {len(tuned.settings)} settings, as for `simulate --set`, at best ")
    if tuned.lean is not None:
        yield _line(tuned.lean, "--lean: ")
    yield ""
    yield from _verdict(tuned, source)


def _line(tried: Tried, prefix: str = "") -> str:
    return f"{'+' if tried.is_kept else ' '} {prefix}{tried.what}: {_text(tried.gain)}"


def _verdict(tuned: Tuned, source: Source) -> Iterator[str]:
    if tuned.is_better:
        yield f"Expected gain: {_text(tuned.gain)} tokens/s over the default, {UNSEEN}."
    elif tuned.searched is None:
        yield f"{NOTHING}: no change served more than the default beyond doubt."
    else:
        told = f"what was kept served {_text(tuned.searched)} more {UNSEEN}"
        yield f"{NOTHING}: {told}; a file is worth {LEAST_GAIN:.0%} or more."
    if tuned.best == tuned.default:
        return
    if not tuned.is_better:
        yield f"Without tiers that hardly ran: {_text(tuned.gain)} tokens/s."
    for bound, steps in tuned.best.ranges:
        before = [each for least, each in tuned.default.ranges if least <= bound][-1]
        more = [f"+{each}" for each in steps if each not in before]
        less = [f"-{each}" for each in before if each not in steps]
        line = f"  from batch {bound} on: {', '.join(map(str, steps))}   {' '.join([*more, *less])}"
        yield line.rstrip()
    if guessed := not_measured(tuned, source):
        yield (
            f"  {', '.join(map(str, guessed))} steps were never measured: their round times lie on "
            "a line through the others, and deep drafts count as likely as the deepest recorded "
            "ones. It gains less where they are not: serve with the file, then tune again."
        )


def document(tuned: Tuned, source: Source, now: datetime | None = None) -> str:
    """Returns the file; this plugin's loader and SGLang's own ignore its comment."""
    when = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    comment = {
        "by": f"sglang-adaptive-spec {__version__} tune",
        "date": when,
        "rounds": f"{len(source.trace.rounds)} of {source.rounds_of}",
        "costs": source.costs_of,
        "gain_over": source.default.source,
        "gain": _gain(tuned.gain),
        "how": f"replayed with {len(SEEDS)} seeds; chosen on half of the blocks, the gain is "
        "that of the other half",
        "changes": [each.what for each in _kept(tuned)],
        "not_measured": not_measured(tuned, source),
    }
    keys: dict[str, Any] = {"policy": "goodput"}
    if source.default.base is not None:
        keys = {"base": source.default.base, **keys}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in keys.items()]
    lines += [
        f"  {json.dumps(str(bound))}: {json.dumps({'candidate_steps': list(steps)})}"
        for bound, steps in tuned.best.ranges
    ]
    shown = json.dumps(comment, indent=2).replace("\n", "\n  ")
    return "{\n" + ",\n".join([f'  "comment": {shown}', *lines]) + "\n}\n"


def _kept(tuned: Tuned) -> list[Tried]:
    """Returns the changes that the best has."""
    tried = tuned.tried if tuned.is_confirmed else ()
    lean = () if tuned.lean is None else (tuned.lean,)
    return [each for each in (*tried, *lean) if each.is_kept]


def _tried(tried: Tried) -> dict[str, Any]:
    return {"what": tried.what, **_gain(tried.gain), "is_kept": tried.is_kept}


def _gain(gain: Gain) -> dict[str, float]:
    return {name: round(getattr(gain, name), 4) for name in ("mean", "low", "high")}


def _text(gain: Gain) -> str:
    return f"{gain.mean:+.1%} ({gain.low:+.1%} to {gain.high:+.1%})"
