"""What of the end-to-end tests `make test` runs: a server or two for each great claim.

By module, the parameters of its tests as pytest shows them. What is not here runs in
`make test-full`.
"""

from collections.abc import Mapping

EAGLE3 = "0.5.21-eagle3-forced-overlap"
WITHOUT_OVERLAP = "0.5.23-eagle-forced"
OF_A_TABLE = "0.5.21-ngram-forced-overlap"  # a worker of its own
TWO_RANKS = "0.5.21-eagle3-forced-trees-tp2-overlap"
PINNED = "0.5.21-eagle-pinned-overlap"

SMOKE: Mapping[str, tuple[str, ...]] = {
    "test_identity": (EAGLE3, WITHOUT_OVERLAP, OF_A_TABLE),
    "test_trees": (TWO_RANKS,),
    "test_kv_accounting": ("0.5.21-page-16-overlap",),
    "test_sampling": (PINNED,),
    "test_zero_steps": ("0.5.21-eagle3-visit-overlap", "0.5.21-eagle3-stale_backlog_row-overlap"),
    "test_entry_points": ("0.5.21-eagle-serve-overlap",),
    "test_real_pair": ("0.5.21-smollm2",),
    "test_report": ("0.5.21-smollm2",),
    "test_faults": ("0.5.21-failing-overlap",),
    "test_refused_starts": ("misspelt-key", "no-hooks"),
}


def chosen(module: str, parameters: str) -> str | None:
    """Returns the entry that a test with these parameters belongs to."""
    for entry in SMOKE.get(module, ()):
        if f"-{parameters}".endswith(f"-{entry}"):
            return entry
    return None
