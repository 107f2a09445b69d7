"""SGLang's benchmark client asks real servers on the CPU host; its own numbers are kept."""

import json
from pathlib import Path

import pytest

from benchmarks.studies.from_outside import KEPT, build_result, check_from_outside
from tests.lab.dry_run import dry_run

pytestmark = pytest.mark.e2e

NUM_REQUESTS, NUM_TOKENS = 6, 12


def test_the_client_s_numbers_of_both_servers(tmp_path: Path) -> None:
    requests = [
        {
            "messages": [{"role": "user", "content": f"Say {number}"}],
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
        }
        for number in range(NUM_REQUESTS)
    ]
    asked = tmp_path / "requests.jsonl"
    asked.write_text("".join(f"{json.dumps(each)}\n" for each in requests))
    arguments = ["run", "--requests", str(asked), "--concurrency", "2", "--repeats", "2"]
    record = dry_run(tmp_path, "from_outside", *arguments, "--max-total-tokens", "8192")
    assert [each["arm"] for each in record["passes"]] == ["none", "goodput", "goodput", "none"]
    for each in record["passes"]:
        assert each["completed"] == NUM_REQUESTS
        assert 0 < each["total_output_tokens"] <= NUM_REQUESTS * NUM_TOKENS
        assert all(each[name] > 0 for name in KEPT if name != "accept_length")  # drafts are random
    result = build_result(record["provenance"], record["servers"], record["passes"])
    assert check_from_outside(result, "cpu") == []
    assert result["cells"].keys() == {"2"}
