"""`explain --html`: the map, the equation and sliders, on one page that needs no network."""

import html
from typing import Any

from sglang_adaptive_spec.operate.explain.source import Source
from sglang_adaptive_spec.operate.explain.text import ACCEPTANCES
from sglang_adaptive_spec.operate.pages.shell import asset, chart, page
from sglang_adaptive_spec.tiers import PLAIN_TIER

SLIDERS = (
    ("acceptance", "acceptance: the chance that a draft holds"),
    ("batch", "batch: requests at once"),
    ("steps", "K: drafts of a round"),
    ("draft", "draft cost, ms: a model, rounds are measured whole"),
)


def explain_page(data: dict[str, Any], source: Source, batch_size: int, acceptance: float) -> str:
    """Returns the page of `text.as_data`; the sliders start at the batch and the acceptance."""
    sliders = "".join(
        f"<label for={name}>{label}<input id={name} type=range><output id={name}-is></output>"
        "</label>"
        for name, label in SLIDERS
    )
    body = (
        f"<p class=faint>Round times: {html.escape(data['costs'])}; "
        f"{data['context_tokens_per_request']} tokens of context a request.</p>"
        f"<p id=answer></p>{sliders}"
        "<p><span id=tokens></span><br><span id=model></span><br><span id=measured></span></p>"
        f"{chart('curve', 'Tokens/s over no speculation, by K')}"
        f"{chart('gains', 'The same of the tier that pays, by acceptance')}"
        "<h2>Which tier pays</h2><p>A cell has the tier and its tokens/s over no speculation; 0 is "
        "no drafts.<span id=live-is></span></p>"
        "<div class=wide><table class=map id=map></table></div>"
    )
    page_data = _page_data(data, source, batch_size, acceptance)
    return page("Does speculation pay?", body, asset("page.js", __package__), page_data)


def _page_data(
    data: dict[str, Any], source: Source, batch_size: int, acceptance: float
) -> dict[str, Any]:
    explorer, sizes = source.explorer, []
    for row in data["batch_sizes"]:
        size = row["batch_size"]
        equation = explorer.equation(size, acceptance)
        tiers = [
            {
                "label": tier.label,
                "steps": tier.num_steps,
                "isChain": tier.topk == 1,
                "ms": explorer.round_ms(tier, size),
                "lifts": explorer.lifts_of(tier),
            }
            for tier in explorer.ladder.of(size)
        ]
        sizes.append(
            {
                "size": size,
                "noneMs": explorer.none_ms(size),
                "breakEven": row["break_even_acceptance"],
                "tiers": tiers,
                "draftMs": None if equation is None else equation.draft_ms,
                "verifyMs": None if equation is None else equation.verify_ms,
            }
        )
    distances = [abs(each["size"] - batch_size) for each in sizes]
    steps = [tier.num_steps for tier in explorer.ladder.tiers if tier.topk == 1]
    now = source.now
    return {
        "sizes": sizes,
        "acceptances": ACCEPTANCES,
        "maxSteps": max(steps),
        "start": {
            "size": distances.index(min(distances)),
            "acceptance": acceptance,
            "steps": int(explorer.pays(batch_size, acceptance).tier.num_steps)
            or min(each for each in steps if each > PLAIN_TIER.num_steps),
        },
        "now": now and {"size": now.batch_size, "acceptance": now.acceptance, "tier": now.tier},
    }
