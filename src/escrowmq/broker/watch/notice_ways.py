"""Sends a notice by a POST request or a program, each with a timeout."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from escrowmq.model.cut_off import cutting_off

END_S = 5.0
"""Longest wait for a killed program to end."""


def post(url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """Post the body; raise unless the web server answers with 200 to 299 in time."""
    request = urllib.request.Request(  # noqa: S310 - the config takes http and https only
        url, data=body, method="POST", headers=dict(headers)
    )
    cut = _Cut()
    opener = urllib.request.build_opener(_CutHandler(cut), _NoRedirect())
    try:
        with cutting_off(timeout_s, cut.now), opener.open(request, timeout=timeout_s):
            pass
    except Exception:
        if not cut.is_cut:
            raise
    # Checked even if an answer was read: one that is cut within its headers looks complete.
    if cut.is_cut:
        raise TimeoutError


class _Cut:
    """Cuts a connection at a deadline.

    A socket's timeout applies to each read, so a web server that sends a byte now and then would
    never reach it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.is_cut = False

    def watch(self, connected: socket.socket) -> None:
        """Cut this socket at the deadline, or now if that has passed."""
        with self._lock:
            self._socket = connected
            if self.is_cut:
                self._shut()

    def now(self) -> None:
        """Cut the connection, because the deadline has passed."""
        with self._lock:
            self.is_cut = True
            self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not the TLS socket's shutdown, which drops state that the reader still uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _CutHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections that a deadline can cut."""

    def __init__(self, cut: _Cut) -> None:
        super().__init__()
        self._cut = cut

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(http.client.HTTPConnection, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(http.client.HTTPSConnection, req)

    def _open(
        self, kind: type[http.client.HTTPConnection], req: urllib.request.Request
    ) -> http.client.HTTPResponse:
        cut = self._cut

        class Connection(kind):  # type: ignore[misc, valid-type]  # one of two classes
            def connect(self) -> None:
                super().connect()
                cut.watch(self.sock)

        return self.do_open(Connection, req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error: urllib would follow it with GET and drop the notice."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401 - the library's arguments
        return None


def execute(
    command: Sequence[str], body: bytes, environ: Mapping[str, str], timeout_s: float
) -> None:
    """Run a program; raise unless it ends with 0 in time. On a timeout, kill its process group."""
    program = subprocess.Popen(  # noqa: S603 - the operator's own program, without a shell
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environ},
        # Its own process group, so that its children can be killed with it.
        start_new_session=True,
    )
    try:
        program.communicate(body, timeout=timeout_s)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait(END_S)
        raise
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, command[0])
