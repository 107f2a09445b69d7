"""SmolLM2-135M-Instruct with an EAGLE-3 head: small enough to serve and to train anywhere."""
