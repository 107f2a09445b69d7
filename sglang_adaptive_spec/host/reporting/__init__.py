"""What people see: the start-up block, /server_info, metrics."""
