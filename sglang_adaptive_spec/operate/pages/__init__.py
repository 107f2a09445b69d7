"""Pages that need no network: one file with its style, its data and its charts.

Charts are drawn by uPlot 1.6.32 (npm: uplot, MIT, uPlot.LICENSE), as npm ships it.
"""
