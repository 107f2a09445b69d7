"""What happened on a server, from its minutes or from a recorded trace: one page, and findings."""
