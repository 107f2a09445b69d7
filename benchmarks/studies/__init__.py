"""One study a question; each has its command, its figures and its check."""
