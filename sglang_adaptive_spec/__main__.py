"""`python -m sglang_adaptive_spec`: the same verbs as `sglang-adaptive-spec`."""

import sys

from sglang_adaptive_spec.cli import main

sys.exit(main())
