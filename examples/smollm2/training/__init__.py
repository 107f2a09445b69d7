"""How the shipped EAGLE-3 head was trained: prompts -> self-generated text -> unrolled training."""
