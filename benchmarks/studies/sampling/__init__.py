"""Is sampling lossless when the tier changes in every round?"""
