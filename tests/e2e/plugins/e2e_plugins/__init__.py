"""SGLang plugins for the tests only; SGLANG_PLUGINS picks which of them a server loads.

The folder above, with its dist-info, goes onto PYTHONPATH: no product code knows of the tests.
"""
