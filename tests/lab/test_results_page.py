"""docs/results.md: every limit of the current results stands there, in its section."""

import pytest

from benchmarks.verify import CHECKS
from tools.write_results import PAGE, Row, page, rows_of, section_of

TARGETS = """target                  measured     95 % interval    limit    verdict
16 0.5: ours / none       1.0213  0.7946 .. 1.3127  >= 0.98  not known
share of a round          0.0142  0.0142 .. 0.0142  <= 0.01     MISSED
ours / none, all cells    0.8240        one repeat   >= 0.9  not known
cell     none  ours
1 0.3   103.1  104.2
"""


def test_limits_are_read_from_a_table_of_targets_and_nothing_else() -> None:
    assert list(rows_of("a", TARGETS)) == [
        Row("a", "16 0.5: ours / none", "1.0213", "0.7946 to 1.3127", ">= 0.98", "not known"),
        Row("a", "share of a round", "0.0142", "0.0142 to 0.0142", "<= 0.01", "MISSED"),
        Row("a", "ours / none, all cells", "0.8240", "one repeat", ">= 0.9", "not known"),
    ]
    assert Row("a", "b", "1", "1 to 1", ">= 2", "MISSED").cells().endswith("| **missed** |")


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_every_result_file_has_a_section(name: str) -> None:
    assert section_of(name)


@pytest.mark.full
def test_the_page_is_what_the_files_say() -> None:
    assert PAGE.read_text() == page()
