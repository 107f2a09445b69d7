"""With no flag but model, draft and algorithm: does a request wait where none would without?"""
