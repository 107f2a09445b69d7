"""The prompts of the second pair: seeded, different, in every domain and language."""

from collections import Counter

import pytest

from examples.qwen_coder import prompts as building
from examples.qwen_coder.prompts import SHARES, WORDS, build_prompts

TITLES = [f"Subject {n}" for n in range(300)]


def test_prompts_repeat_with_their_seed_and_none_comes_twice() -> None:
    prompts = build_prompts(TITLES, 400, seed=3)
    assert prompts == build_prompts(TITLES, 400, seed=3)
    assert prompts != build_prompts(TITLES, 400, seed=4)
    assert len({prompt.text for prompt in prompts}) == 400
    assert sum(prompt.split == "heldout" for prompt in prompts) == 20
    domains = Counter(prompt.domain for prompt in prompts)
    assert domains == {domain: round(400 * share) for domain, share in SHARES.items()}
    asked = " ".join(prompt.text for prompt in prompts)
    assert all(language in asked for language in WORDS["languages"])
    fields = ("{language}", "{task}", "{keys}", "{text}", "{tongue}", "{0}")
    assert not any(field in asked for field in fields)
    assert any(not prompt.chat for prompt in prompts)  # text to be continued


def test_more_prompts_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "SHARES", {"chat": 1.0})
    monkeypatch.setitem(WORDS, "chat", ["What is {0}?"])
    with pytest.raises(ValueError, match="3 different prompts of a kind, 10 wanted; ask for fewer"):
        build_prompts(TITLES[:3], 10)
