"""Tables line up and show what is absent."""

from benchmarks.stats.tables import table


def test_columns_align_and_an_absent_value_is_a_dash() -> None:
    text = table(("arm", "tok/s"), [("none", 1234.5678), ("static-3", None)])
    assert text.splitlines() == ["arm       tok/s", "none       1235", "static-3      -"]
