"""The answers of `explain` as text and as plain data."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sglang_adaptive_spec.operate.explain.break_even import Explorer
from sglang_adaptive_spec.operate.explain.source import Now, Source

ACCEPTANCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def as_data(source: Source, batch_size: int, acceptance: float) -> dict[str, Any]:
    """Returns the map, the break-even acceptances and the equation; plain builtins only."""
    explorer = source.explorer
    rows = []
    for size in source.batch_sizes:
        cells = {str(a): explorer.pays(size, a) for a in ACCEPTANCES}
        rows.append(
            {
                "batch_size": size,
                "break_even_acceptance": explorer.break_even(size),
                "none_ms": round(explorer.none_ms(size), 4),
                "round_ms": {
                    tier.label: round(explorer.round_ms(tier, size), 4)
                    for tier in explorer.ladder.of(size)
                },
                "pays": {
                    name: {"tier": cell.tier.label, **_gains(cell.over_none, cell.over_fixed)}
                    for name, cell in cells.items()
                },
            }
        )
    equation = explorer.equation(batch_size, acceptance)
    return {
        "costs": source.origin,
        "batch_size": batch_size,
        "context_tokens_per_request": explorer.context,
        "fixed_steps": explorer.fixed_steps,
        "now": None if source.now is None else asdict(source.now),
        "batch_sizes": rows,
        "equation": equation
        and {
            "batch_size": batch_size,
            "acceptance": acceptance,
            **equation._asdict(),
            "tier": equation.tier.label,
        },
    }


def _gains(over_none: float, over_fixed: float | None) -> dict[str, float | None]:
    fixed = None if over_fixed is None else round(over_fixed, 4)
    return {"over_none": round(over_none, 4), "over_fixed": fixed}


def render(data: dict[str, Any], source: Source) -> str:
    """Returns the data as text."""
    rows = data["batch_sizes"]
    names = [str(each) for each in ACCEPTANCES]

    def over_acceptances(title: str, shown: Callable[[dict[str, Any]], str]) -> list[str]:
        body = [[str(row["batch_size"]), *(shown(row["pays"][n]) for n in names)] for row in rows]
        return ["", title, *_aligned([["batch", *names], *body])]

    from_on = [[str(row["batch_size"]), _share(row["break_even_acceptance"])] for row in rows]
    lines = [
        f"costs: {data['costs']}",
        f"context: {data['context_tokens_per_request']} tokens a request",
        "",
        "Speculation pays from this acceptance on (the chance that a draft holds):",
        *_aligned([["batch", "acceptance"], *from_on]),
        *over_acceptances("The tier that pays, by acceptance:", lambda cell: str(cell["tier"])),
        *over_acceptances(
            "Its tokens/s over no speculation:", lambda cell: _ratio(cell["over_none"])
        ),
        *over_acceptances(
            f"Its tokens/s over {data['fixed_steps']} steps, fixed:",
            lambda cell: _ratio(cell["over_fixed"]),
        ),
    ]
    if data["equation"] is None:
        lines += ["", f"At batch {data['batch_size']} only zero steps may run: nothing to compare."]
    else:
        lines += ["", *equation_lines(data["equation"])]
    if source.now is not None:
        lines += ["", _now_line(source.explorer, source.now)]
    return "\n".join(lines)


def equation_lines(found: dict[str, Any]) -> list[str]:
    """Returns the throughput equation with its numbers."""
    size, a, steps = found["batch_size"], found["acceptance"], int(found["tier"])
    over = found["tokens_per_s"] / found["none_tokens_per_s"]
    depth = f"{steps} step{'s' if steps > 1 else ''}"
    if over < 1:
        depth = f"zero steps pay. The best tier that drafts, {depth}"
    lines = [
        f"At batch {size} and acceptance {a:g}, {depth}:",
        f"  n = (1 - {a:g}^{steps + 1}) / (1 - {a:g}) = {found['tokens']:.3f} tokens of a request",
    ]
    if found["draft_ms"] is not None:
        line_ms = steps * found["draft_ms"] + found["verify_ms"]
        lines.append(
            f"  t = K * draft + verify = {steps} * {found['draft_ms']:.2f} + "
            f"{found['verify_ms']:.2f} = {line_ms:.2f} ms (a line through the measured chains)"
        )
    return [
        *lines,
        f"  measured: {found['round_ms']:.2f} ms a round; without: {found['none_ms']:.2f} ms",
        f"  {size} * n / {found['round_ms']:.2f} ms = {found['tokens_per_s']:,.0f} tokens/s, "
        f"{over:.2f} times {found['none_tokens_per_s']:,.0f} of no speculation",
    ]


def _now_line(explorer: Explorer, now: Now) -> str:
    best = explorer.pays(now.batch_size, now.acceptance)
    return (
        f"Now: batch {now.batch_size}, the first draft holds with {now.acceptance:.2f}; in force: "
        f"{now.tier} steps. At that acceptance throughout {best.tier.label} would pay: "
        f"{best.over_none:.2f} times no speculation."
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[idx]) for row in rows) for idx in range(len(rows[0]))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _share(acceptance: float | None) -> str:
    return "never" if acceptance is None else f"{acceptance:.2f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
