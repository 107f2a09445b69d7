"""Before a server has a worker: the request, the arguments, what is refused."""
