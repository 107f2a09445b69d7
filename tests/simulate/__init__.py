"""The simulator: trace format, replay, regret, and the golden traces that judge the policies."""
