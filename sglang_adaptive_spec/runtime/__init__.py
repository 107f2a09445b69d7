"""What a tier owns on the device: graphs to capture, memory to plan for, the pool that swaps."""
