"""What runs inside a measured server: acceptance is injected, rounds recorded, faults planted."""
