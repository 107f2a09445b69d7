"""Before a server has a worker: the options, the arguments, what is refused."""
