"""Which tier a batch runs at. Standard library and numpy only."""
