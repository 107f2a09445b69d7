"""How EAGLE-3 heads are trained: prompts -> text of the target itself -> unrolled training."""
