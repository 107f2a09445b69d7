"""Every example config loads, and the README beside them tells the truth about them."""

import re
from pathlib import Path

import pytest

import examples
from sglang_adaptive_spec.config.schema import load_config

EXAMPLES = Path(examples.__file__).parent
CONFIGS = sorted((EXAMPLES / "configs").glob("*.json"))
README = (EXAMPLES / "configs" / "README.md").read_text()


def test_there_are_examples_for_three_pairs() -> None:
    assert len(CONFIGS) == 3


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_example_loads_and_its_slots_are_in_the_table(path: Path) -> None:
    config = load_config(str(path))
    row = next(line for line in README.splitlines() if f"({path.name})" in line)
    assert f"| {config.base} |" in row
    for bound, slot in config.slots.items():
        steps = ", ".join(map(str, slot.candidate_steps))
        assert (f"| {steps} |" if bound == 1 else f"| {bound}: {steps} |") in row


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_larger_batches_never_go_deeper(path: Path) -> None:
    deepest = [max(slot.candidate_steps) for slot in load_config(str(path)).slots.values()]
    assert deepest == sorted(deepest, reverse=True)


def test_every_command_names_a_config_that_exists() -> None:
    named = re.findall(r"--speculative-adaptive-config (\S+)", README)
    assert sorted(named) == [str(path.relative_to(EXAMPLES.parent)) for path in CONFIGS]


def test_the_flags_of_the_commands_are_the_hosts() -> None:
    from sglang.srt.server_args import ServerArgs

    commands = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    flags = {flag for command in commands for flag in re.findall(r"--([a-z0-9-]+)", command)}
    fields = set(ServerArgs.__struct_fields__)
    assert {flag.replace("-", "_") for flag in flags} <= fields
