"""Does speculation pay here, and from which acceptance on? From measured round times."""
