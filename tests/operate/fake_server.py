"""A server that answers /server_info, for the verbs that ask one."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@contextlib.contextmanager
def serving(
    answer: Any,
    key: str | None = None,
    obey: Callable[[dict[str, float]], Any] | None = None,
    path: str = "/server_info",
) -> Iterator[str]:
    """Answers ``answer``, or what it returns when called, to whoever has the key.

    Commands go to ``obey``, whose value is the answer. What is asked for elsewhere is not found.
    """
    give: Callable[[], Any] = answer if callable(answer) else lambda: answer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(give, self.path == path)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(lambda: obey(body["server_args"]) if obey is not None else [False])

        def answer(self, value: Callable[[], Any], is_there: bool = True) -> None:
            allowed = key is None or self.headers.get("Authorization") == f"Bearer {key}"
            self.send_response(401 if not allowed else 200 if is_there else 404)
            self.end_headers()
            self.wfile.write(json.dumps(value()).encode() if allowed and is_there else b"")

        def log_message(self, *args: Any) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def info(*states: Any) -> dict[str, Any]:
    """Returns the answer of a server with these objects ``adaptive_spec``; None: without."""
    return {"internal_states": [{} if each is None else {"adaptive_spec": each} for each in states]}
