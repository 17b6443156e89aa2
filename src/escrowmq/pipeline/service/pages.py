"""``/``, ``/status`` and ``/metrics`` over HTTP, read-only, served from a separate thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from escrowmq.model.errors import RequestRefused
from escrowmq.model.front_page import front_page
from escrowmq.pipeline.service.telemetry import Telemetry

#: Timeout for a silent client.
SILENT_S_MAX = 10.0


class StatusServer:
    """The HTTP server. It serves until it is closed."""

    def __init__(self, host: str, port: int, telemetry: Telemetry) -> None:
        handler = _handler(telemetry)
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            raise RequestRefused(
                "address_unusable", str(error), host=host, port=port, setting="pipeline.http_port"
            ) from error
        self._server.daemon_threads = True
        self.address = f"{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="pages", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _front() -> str:
    about = {"/status": "what the pipeline did, as JSON", "/metrics": "numbers for Prometheus"}
    return front_page("EscrowMQ pipeline", {"version": version("escrowmq")}, about).decode()


def _handler(telemetry: Telemetry) -> type[BaseHTTPRequestHandler]:
    pages: dict[str, tuple[str, Callable[[], str]]] = {
        "/": ("text/html; charset=utf-8", _front),
        "/status": ("application/json", lambda: json.dumps(telemetry.status(), indent=2) + "\n"),
        "/metrics": ("text/plain; version=0.0.4; charset=utf-8", telemetry.metrics),
    }

    class Handler(BaseHTTPRequestHandler):
        timeout = SILENT_S_MAX

        def do_GET(self) -> None:
            """Answer with a page, or with the list of pages."""
            page = pages.get(self.path.partition("?")[0])
            kind, body = "text/plain; charset=utf-8", f"there are {' '.join(pages)}\n"
            if page is not None:
                kind, body = page[0], page[1]()
            content = body.encode()
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 -- the library's name

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the library's
            """Do not log requests for pages."""

    return Handler
