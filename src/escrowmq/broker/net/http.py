"""A few read-only pages over HTTP/1.1, for probes, browsers and curl.

Each connection serves one GET or HEAD request and is then closed. The server refuses a head that
is too large, cuts a connection that takes too long, and answers 503 above the limit of
connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import msgspec

from escrowmq.broker.access.common_needs import check_table
from escrowmq.broker.access.needs_http import HTTP_NEEDS
from escrowmq.broker.net.http_admission import HttpLink
from escrowmq.broker.net.tls import certificate_names, has_tls
from escrowmq.model.event_log import event_log

if TYPE_CHECKING:
    from escrowmq.broker.net.http_admission import HttpAdmission, HttpRefusal

log = event_log(__name__)

HEAD_BYTES_MAX = 8_192
#: Time from connecting until the peer has read the answer, in seconds.
TIME_S_MAX = 10.0
CONNECTIONS_MAX = 64

_END = b"\r\n\r\n"
WRONG_PORT = "this port speaks HTTP/1.1 only; clients use broker.port or broker.name_port"
#: An HTTP method begins with one of these letters; a remoting frame does not.
_METHOD_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_METHODS = ("GET", "HEAD")
_REQUEST_LINE_PARTS = 3


class PageContent(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a page."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], PageContent | Awaitable[PageContent]]]
"""Pages by path. A slow page returns an awaitable."""


def text(line: str, status: HTTPStatus = HTTPStatus.OK) -> PageContent:
    """Return a page of one line of text."""
    return PageContent(body=f"{line}\n".encode(), status=status)


def html(body: bytes) -> PageContent:
    """Return an HTML page."""
    return PageContent(body=body, content_type="text/html; charset=utf-8")


def json(value: object) -> PageContent:
    """Return a value as indented JSON."""
    body = msgspec.json.format(msgspec.json.encode(value), indent=2)
    return PageContent(body=body + b"\n", content_type="application/json")


class HttpConnections:
    """Creates a protocol for each connection, and tracks open connections."""

    def __init__(self, pages: Pages, admission: HttpAdmission | None = None) -> None:
        check_table(pages, HTTP_NEEDS)
        self.pages = pages
        #: None if every page is open.
        self.admission = admission
        self.open: set[HttpConnection] = set()

    def __call__(self) -> HttpConnection:
        """Return the protocol for a new connection."""
        return HttpConnection(self)

    def close(self) -> None:
        """Cut all connections."""
        for connection in list(self.open):
            connection.cut()


class HttpConnection(asyncio.Protocol):
    """Connection for one request."""

    def __init__(self, owner: HttpConnections) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._is_answered = False
        self._timer: asyncio.TimerHandle | None = None
        self._making: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up a new connection; refuse it if there are too many."""
        # uvloop's transports have the methods of asyncio.Transport, but not its type.
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(TIME_S_MAX, self.cut)
        self._owner.open.add(self)
        if len(self._owner.open) > CONNECTIONS_MAX:
            self._answer(text("too many connections", HTTPStatus.SERVICE_UNAVAILABLE))

    def data_received(self, data: bytes) -> None:
        """Collect the request's head, and ignore any body."""
        if self._is_answered:
            return
        self._head += data
        head, end, _ = self._head.partition(_END)
        if self._head[0] not in _METHOD_LETTERS:
            # Answer now: otherwise a client meant for the broker's port waits until it is cut.
            self._answer(text(WRONG_PORT, HTTPStatus.BAD_REQUEST))
        elif len(head) > HEAD_BYTES_MAX:
            self._answer(text("the head is too long", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        elif end:
            self._respond(head)

    def _respond(self, head: bytes) -> None:
        refusal = self._refusal(head)
        if refusal is not None:
            # Ignore further bytes from the peer.
            self._is_answered = True
            answered = text(refusal.text, refusal.status)
            asyncio.get_running_loop().call_later(refusal.delay_s, self._answer, answered)
            return
        method, answer = respond(head, self._owner.pages)
        is_head = method == "HEAD"
        if isinstance(answer, PageContent):
            self._answer(answer, is_head=is_head)
            return
        # Ignore further bytes from the peer.
        self._is_answered = True
        page = head.split(b" ")[1].partition(b"?")[0].decode("latin-1")
        self._making = asyncio.ensure_future(self._answer_later(page, answer, is_head=is_head))

    def _refusal(self, head: bytes) -> HttpRefusal | None:
        """Return why the page is refused to this client; None if it is not."""
        admission, transport = self._owner.admission, self._transport
        path = _path_of(head)
        if admission is None or path not in self._owner.pages:
            return None
        assert transport is not None
        link = HttpLink(
            (transport.get_extra_info("peername") or ("",))[0],
            has_tls(transport),
            certificate_names(transport),
        )
        return admission.refusal(link, path, head)

    async def _answer_later(
        self, page: str, coming: Awaitable[PageContent], *, is_head: bool
    ) -> None:
        try:
            answer = await coming
        except Exception:
            log.exception("page_failed", extra={"page": page})
            answer = text("the page failed; the log says why", HTTPStatus.INTERNAL_SERVER_ERROR)
        self._answer(answer, is_head=is_head)

    def _answer(self, answer: PageContent, *, is_head: bool = False) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._is_answered = True
        self._transport.write(encode(answer, is_head=is_head))
        # Close only our side: closing with unread input may reset the connection too early.
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def eof_received(self) -> bool:
        """Return whether to keep the connection open: only while a page is being made."""
        return self._making is not None and not self._making.done()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection has closed."""
        del exc
        self._owner.open.discard(self)
        if self._making is not None:
            self._making.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def cut(self) -> None:
        """Abort the connection at once."""
        if self._transport is not None:
            self._transport.abort()


def _path_of(head: bytes) -> str:
    """Return the path of a request; empty if there is none."""
    parts = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    return parts[1].partition("?")[0] if len(parts) == _REQUEST_LINE_PARTS else ""


def respond(head: bytes, pages: Pages) -> tuple[str, PageContent | Awaitable[PageContent]]:
    """Return a request's method and its answer."""
    line, _, _ = head.partition(b"\r\n")
    parts = line.decode("latin-1").split(" ")
    if len(parts) != _REQUEST_LINE_PARTS or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        return "", text("this is no HTTP/1.1 request", HTTPStatus.BAD_REQUEST)
    method, target, _ = parts
    if method not in _METHODS:
        return method, text("GET or HEAD only", HTTPStatus.METHOD_NOT_ALLOWED)
    page = pages.get(target.partition("?")[0])
    if page is None:
        known = " ".join(sorted(pages))
        return method, text(f"no such page; there are {known}", HTTPStatus.NOT_FOUND)
    return method, page()


def encode(answer: PageContent, *, is_head: bool) -> bytes:
    """Return an answer as bytes."""
    status = answer.status
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if status is HTTPStatus.UNAUTHORIZED:
        head.append('WWW-Authenticate: Basic realm="EscrowMQ", charset="UTF-8"')
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        head.append("Allow: " + ", ".join(_METHODS))
    lines = "\r\n".join(head).encode() + _END
    return lines if is_head else lines + answer.body
