"""What is the server doing right now? From /server_info, once a second."""
