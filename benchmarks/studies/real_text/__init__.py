"""Real text on a pair whose rounds the GPU bounds."""
