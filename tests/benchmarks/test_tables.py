"""Tables line up, show what is uncertain, and call a missed target missed."""

import copy

from benchmarks import summary, tables
from benchmarks.load import relative_spread
from tests.benchmarks.records import records


def test_columns_align_and_an_absent_value_is_a_dash() -> None:
    text = tables.table(("arm", "tok/s"), [("none", 1234.5678), ("static-3", None)])
    assert text.splitlines() == ["arm       tok/s", "none       1235", "static-3      -"]


def test_spread_is_the_range_over_the_median() -> None:
    assert relative_spread([90.0, 100.0, 120.0]) == 0.3


def test_a_run_s_table_shows_rate_spread_overhead_graphs_and_tiers() -> None:
    passes = [each for each in records()[0]["passes"] if each["arm"] in ("none", "ema")]
    header, *rows = [line.split() for line in tables.cell_table(passes).splitlines()]
    assert " ".join(header) == "arm acceptance batch tok/s spread policy us eager rounds"
    assert ["none", "natural", "1", "100", "30.0%", "-", "0", "3:300"] in rows
    assert ["ema", "sim3.5", "100", "10000", "30.0%", "12", "0", "3:300"] in rows


def test_the_phase_table_has_a_row_per_arm_and_phase() -> None:
    lines = tables.phase_table(records()[2]["passes"]).splitlines()
    assert len(lines) == 1 + 4 * 2
    assert lines[1].split() == ["none", "prose", "150", "3", "900"]


def test_targets_are_met_or_missed_by_their_limit() -> None:
    result = summary.merged(records())
    verdicts = {target.claim: target.is_met for target in tables.targets(result)}
    assert verdicts == {
        "tiers' GB over the host's": False,  # both 10 GB
        "tiers' seconds over the host's": False,
        "lowest throughput over the host's adaptive": True,
        "choose + activate + observe, us per round": True,
        "captures after ready": True,
        "rounds without a graph": True,
        "lowest throughput of tier 0 over none": False,  # 0.95
    }


def test_the_lowest_throughput_is_that_of_the_worst_cell() -> None:
    runs = copy.deepcopy(records())
    for each in runs[0]["passes"]:
        for made in each["cells"]:
            if each["arm"] == "ema" and made["batch_size"] == 48:
                for one in made["repeats"]:
                    one["seconds"] *= 2
    lowest = {target.claim: target for target in tables.targets(summary.merged(runs))}[
        "lowest throughput over the host's adaptive"
    ]
    assert lowest.value == 0.5
    assert not lowest.is_met


def test_a_round_without_a_graph_misses_its_target() -> None:
    runs = copy.deepcopy(records())
    ema = next(each for each in runs[0]["passes"] if each["arm"] == "ema")
    ema["cells"][0]["repeats"][0]["num_eager_rounds"] = 1
    assert "MISSED" in next(
        line
        for line in tables.target_table(summary.merged(runs)).splitlines()
        if line.startswith("rounds without a graph")
    )
