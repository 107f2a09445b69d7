"""Does the simulator say what the GPU does, and how far is the policy from the oracle?"""
