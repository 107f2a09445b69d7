"""Until a server is ready: its tiers are built, their round times measured."""
