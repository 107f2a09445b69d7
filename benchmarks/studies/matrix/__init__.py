"""Is the policy as fast as the best depth at every batch size and acceptance?"""
