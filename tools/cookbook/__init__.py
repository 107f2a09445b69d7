"""What `check` answers to the launch lines of SGLang's cookbook, for docs/compatibility.md."""
