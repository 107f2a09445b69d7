"""From windows to figures: intervals, verdicts, tables, and where a result came from."""
