"""One connection to a broker or a name server: our requests, their responses, and its requests.

Requests share the connection: each has a number, and responses arrive in any order. Requests made
in one turn of the event loop go out in one write. If a response does not arrive in time, or the
connection is lost, the request may have been done; the caller gets OutcomeUnknown and decides.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from escrowmq.client.network.foreign_peers import HEAD_BYTES, TLS_REFUSED, kind_of
from escrowmq.client.network.request_signer import chosen_signer
from escrowmq.client.network.tls import REFUSED, client_context, tls_failed
from escrowmq.model.errors import OutcomeUnknown, ProtocolViolation, RequestRefused, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.protocol.message.ids import PORT_MAX
from escrowmq.protocol.remoting.frames import OPAQUE_MAX, FrameSplitter, encode_request

if TYPE_CHECKING:
    from escrowmq.client.network.request_signer import RequestSigner
    from escrowmq.model.credentials import Credentials
    from escrowmq.model.tls import Tls
    from escrowmq.protocol.remoting.frames import RemotingFrame
    from escrowmq.protocol.remoting.headers import Header

log = event_log(__name__)

CONNECT_S = 3.0
REQUEST_S = 3.0
#: Granularity of request timeouts.
SWEEP_S = 0.1
#: Maximum number of unanswered requests on one connection; callers wait when it is reached.
UNANSWERED_MAX = 4_096
MAYBE_DONE = "the broker may have carried out the request: check before you repeat it"

Asked = Callable[["BrokerConnection", "RemotingFrame"], None]
"""Called with each request of the other side."""


class BrokerConnection(asyncio.Protocol):
    """One connection; ``BrokerConnection.open`` makes it. Use it from one event loop only."""

    def __init__(self, address: str, asked: Asked) -> None:
        self.address = address
        self._asked = asked
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        #: None without credentials.
        self._signer: RequestSigner | None = None
        self._out: list[bytes] = []
        self._is_flush_scheduled = False
        self._opaque = count(1)
        #: Request number -> the caller's future and its deadline (the loop's clock).
        self._waiting: dict[int, tuple[asyncio.Future[RemotingFrame], float]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        #: Callers that wait for room.
        self._held: deque[asyncio.Future[None]] = deque()
        self._is_full = False
        #: The first bytes received; None once a complete frame has arrived.
        self._head: bytes | None = b""
        #: Kind of server found instead of a broker, a key of ``PEERS``; empty for a broker.
        self.foreign_kind = ""
        #: Done when the connection is lost.
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def open(
        cls,
        address: str,
        asked: Asked,
        *,
        tls: Tls | None = None,
        connect_s: float = CONNECT_S,
        credentials: Credentials | None = None,
    ) -> BrokerConnection:
        """Connect, or raise Unavailable if the address does not answer."""
        host, port = split_address(address)
        connection = cls(address, asked)
        connection._signer = chosen_signer(credentials)
        secured: dict[str, Any] = {}
        if tls is not None:
            secured = {"ssl": client_context(tls), "server_hostname": tls.server_name or host}
        try:
            async with asyncio.timeout(connect_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, host, port, **secured
                )
        except ssl.SSLCertVerificationError as error:
            raise tls_failed(address, REFUSED, error) from None
        except (OSError, TimeoutError) as error:
            raise Unavailable(
                "broker_unreachable",
                "is it running, and is the address right?"
                if tls is None
                else "is it running with TLS, and is the address right?",
                address=address,
                cause=str(error) or "no answer in time",
            ) from None
        except BaseException:
            # The socket may be connected already, and no caller could close it.
            connection.abort()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    # For callers.

    async def ask(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = REQUEST_S,
    ) -> RemotingFrame:
        """Return the response. OutcomeUnknown: none came; Unavailable: the request was not sent."""
        while self._is_full or len(self._waiting) >= UNANSWERED_MAX:
            await self._room()
        return await self.ask_soon(code, header, body, timeout_s=timeout_s)

    def ask_soon(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = REQUEST_S,
    ) -> asyncio.Future[RemotingFrame]:
        """Send a request without waiting. Requests leave in the order of these calls."""
        if not self.is_open:
            raise Unavailable("connection_lost", "connect again", address=self.address)
        opaque = next(self._opaque) & OPAQUE_MAX
        answer: asyncio.Future[RemotingFrame] = self._loop.create_future()
        self._waiting[opaque] = (answer, self._loop.time() + timeout_s)
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_S, self._give_up)
        self._send(encode_request(code, opaque, header=header, body=body, signer=self._signer))
        return answer

    def tell(
        self, code: int, header: Header | None = None, body: bytes = b"", *, remark: str = ""
    ) -> bool:
        """Send a one-way request; return False if the connection is lost."""
        if not self.is_open:
            return False
        opaque = next(self._opaque) & OPAQUE_MAX
        self._send(
            encode_request(
                code,
                opaque,
                header=header,
                remark=remark,
                body=body,
                is_one_way=True,
                signer=self._signer,
            )
        )
        return True

    def reply(self, data: bytes) -> None:
        """Send a complete response frame to the other side's request."""
        if self.is_open:
            self._send(data)

    def close(self) -> None:
        """Close the connection after pending writes."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once and drop pending writes."""
        if self._transport is not None:
            self._transport.abort()

    async def _room(self) -> None:
        if not self.is_open:
            raise Unavailable("connection_lost", "connect again", address=self.address)
        held: asyncio.Future[None] = self._loop.create_future()
        self._held.append(held)
        await held

    def _let_in(self) -> None:
        room = UNANSWERED_MAX - len(self._waiting)
        while self._held and room > 0 and not self._is_full:
            held = self._held.popleft()
            if not held.done():
                held.set_result(None)
                room -= 1

    def _send(self, data: bytes) -> None:
        self._out.append(data)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._transport is not None and self._out:
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    def _give_up(self) -> None:
        """Fail the requests whose timeout has passed."""
        now = self._loop.time()
        late = [opaque for opaque, (_, until) in self._waiting.items() if until <= now]
        for opaque in late:
            answer, _ = self._waiting.pop(opaque)
            if not answer.done():
                answer.set_exception(
                    OutcomeUnknown("request_timed_out", MAYBE_DONE, address=self.address)
                )
        self._let_in()
        self._sweep = self._loop.call_later(SWEEP_S, self._give_up) if self._waiting else None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Give responses to their callers, and the other side's requests to ``asked``."""
        if self._head is not None and len(self._head) < HEAD_BYTES:
            self._head += data[:HEAD_BYTES]
        try:
            for frame in self._splitter.feed(data):
                self._head = None
                if not frame.is_response:
                    self._asked(self, frame)
                    continue
                answer, _ = self._waiting.pop(frame.opaque, (None, 0.0))
                if answer is not None and not answer.done():
                    answer.set_result(frame)
        except ProtocolViolation as violation:
            self._note_foreign(is_malformed=True)
            log.warning("connection_cut", extra={"address": self.address, "why": str(violation)})
            if self._transport is not None:
                self._transport.abort()
        if self._held:
            self._let_in()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all unanswered requests."""
        if isinstance(exc, ssl.SSLError) and self._head is not None:
            self.foreign_kind = TLS_REFUSED
        elif not self.foreign_kind:
            self._note_foreign(is_malformed=False)
        self._transport = None
        self._out.clear()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(
                    OutcomeUnknown("connection_lost", MAYBE_DONE, address=self.address)
                )
        self._waiting.clear()
        while self._held:
            held = self._held.popleft()
            if not held.done():
                held.set_result(None)
        if not self.lost.done():
            self.lost.set_result(None)

    def _note_foreign(self, *, is_malformed: bool) -> None:
        if self._head is not None:
            self.foreign_kind = kind_of(self._head, is_malformed=is_malformed)

    def pause_writing(self) -> None:
        """Make callers wait, because the other side does not read."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Let callers continue, because the other side reads again."""
        self._is_full = False
        self._let_in()


def split_address(address: str) -> tuple[str, int]:
    """Split an address into host and port."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise RequestRefused("address_illegal", "write it as host:port", address=address)
    return host, int(port)
