"""Synchronous client for native requests: one blocking connection to one broker.

Tools, the pipeline's driver and tasks, and tests use it. Only one thread may use it at a time. The
next call reconnects after a connection broke.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

import msgspec

from escrowmq.client.network.foreign_peers import kind_of, not_a_broker
from escrowmq.client.network.refusing import refuse_unless_done
from escrowmq.client.network.request_signer import RequestSigner, chosen_signer
from escrowmq.client.network.tls import (
    NO_CERTIFICATE,
    REFUSED,
    chosen_tls,
    client_context,
    tls_failed,
)
from escrowmq.model.credentials import Credentials
from escrowmq.model.errors import EscrowError, OutcomeUnknown, ProtocolViolation, Unavailable
from escrowmq.model.tls import Tls, TlsAddress
from escrowmq.protocol.native.frames import (
    ArrowAnswer,
    BlocksAnswer,
    NativeReply,
    encode_arrow_call,
    encode_call,
    read_answer,
    read_arrow_answer,
    read_blocks_answer,
    unsupported,
)
from escrowmq.protocol.native.headers import NativeHeader
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import (
    OPAQUE_MAX,
    RemotingFrame,
    decode_frame,
    encode_request,
    frame_size,
)
from escrowmq.protocol.remoting.headers import Header

CONNECT_S = 3.0
ANSWER_S = 30.0
_WORD_BYTES = 4
SILENT = (
    "it accepts connections but does not answer: it hangs, or another program uses this address"
)

PageT = TypeVar("PageT", NativeReply, ArrowAnswer)


class NativeCalls:
    """A connection to the broker at this address, ``host:port``.

    Without ``tls``, a ``TlsAddress`` says how to connect, else the environment does. Without
    ``credentials``, the environment may have some.
    """

    def __init__(
        self,
        address: str,
        *,
        connect_s: float = CONNECT_S,
        answer_s: float = ANSWER_S,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        if tls is None and isinstance(address, TlsAddress):
            tls = address.tls
        self._tls = chosen_tls(tls)
        self._credentials = credentials
        #: Signs the requests of the open connection; None without credentials.
        self._signer: RequestSigner | None = None
        #: Whether the broker knows the user of the open connection.
        self._is_admitted = False
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._connect_s = connect_s
        self._answer_s = answer_s
        self._socket: socket.socket | None = None
        #: Whether the peer has sent at least one well-formed frame on this connection.
        self._peer_speaks_remoting = False
        #: The first bytes of the last frame, as far as they were received.
        self._head = b""
        self._opaque = 0

    def call(
        self, code: NativeCode, header: NativeHeader | None = None, rows: Sequence[NativeRow] = ()
    ) -> NativeReply:
        """Send a request and return the answer; raise the broker's refusal."""
        self._connected()
        request = encode_call(code, self._next_opaque(), header, rows, self._signer)
        return read_answer(code, self._exchange(code, request))

    def call_arrow(
        self,
        code: NativeCode,
        header: NativeHeader | None = None,
        batch: Any = None,  # noqa: ANN401 - a pyarrow RecordBatch, which has no type without importing it
    ) -> ArrowAnswer:
        """Send and receive rows as Arrow batches, without an object per row."""
        self._connected()
        if self._signer is not None and not self._is_admitted:
            # The broker takes large requests only from connections that have a user.
            self.call(NativeCode.STATUS)
        request = encode_arrow_call(code, self._next_opaque(), header, batch, self._signer)
        return read_arrow_answer(code, self._exchange(code, request), header)

    def ask(self, code: RequestCode, header: Header, body: bytes = b"") -> RemotingFrame:
        """Send one of RocketMQ's requests, for what native requests do not cover."""
        self._connected()
        opaque = self._next_opaque()
        request = encode_request(code, opaque, header=header, body=body, signer=self._signer)
        answer = self._exchange(code, request)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise unsupported(answer)
        return refuse_unless_done(answer)

    def call_blocks(self, code: NativeCode, header: NativeHeader) -> BlocksAnswer:
        """Send a request that is answered with bytes."""
        self._connected()
        request = encode_call(code, self._next_opaque(), header, signer=self._signer)
        return read_blocks_answer(code, self._exchange(code, request, is_body_copied=False))

    def pages(self, code: NativeCode, header: NativeHeader | None = None) -> Iterator[NativeReply]:
        """Request page after page and yield the answers."""
        return _pages(self.call, code, header)

    def arrow_pages(
        self, code: NativeCode, header: NativeHeader | None = None
    ) -> Iterator[ArrowAnswer]:
        """Request page after page and yield the answers, with rows as Arrow batches."""
        return _pages(self.call_arrow, code, header)

    def rows(self, code: NativeCode, header: NativeHeader | None = None) -> Iterator[Any]:
        """Yield the rows of all pages."""
        for answer in self.pages(code, header):
            yield from answer.rows

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The socket.

    def _next_opaque(self) -> int:
        self._opaque = self._opaque % OPAQUE_MAX + 1
        return self._opaque

    def _exchange(
        self, code: NativeCode | RequestCode, request: bytes, *, is_body_copied: bool = True
    ) -> RemotingFrame:
        connection = self._connected()
        until = time.monotonic() + self._answer_s
        try:
            connection.settimeout(self._answer_s)
            connection.sendall(request)
            answer = self._answer(connection, until, is_body_copied=is_body_copied)
        except (OSError, ProtocolViolation) as error:
            # A late response would be read as the response to the next request.
            self.close()
            if not self._peer_speaks_remoting:
                # A server that is not a broker cannot have executed the request.
                self._refuse_foreign(error)
            raise self._lost(code, error) from error
        except BaseException:
            self.close()
            raise
        self._is_admitted = True
        return answer

    def _refuse_foreign(self, error: Exception) -> None:
        """Raise if another kind of server is at the address."""
        if isinstance(error, ssl.SSLError):
            raise tls_failed(self._shown_address, NO_CERTIFICATE, error) from error
        kind = kind_of(self._head, is_malformed=isinstance(error, ProtocolViolation))
        if kind:
            raise not_a_broker(self._shown_address, kind, str(error)) from error

    def _lost(self, code: NativeCode | RequestCode, error: Exception) -> EscrowError:
        """Return OutcomeUnknown if the request may have changed something, else Unavailable."""
        facts: dict[str, Any] = {"address": self._shown_address, "cause": str(error)}
        own = NATIVE_REQUESTS.get(code)
        if own is None or own.changes:
            return OutcomeUnknown(
                "answer_lost", "it may have been done", request=code.name, **facts
            )
        # A hanging broker and another program that stays silent look the same to the client.
        is_silent = isinstance(error, TimeoutError) and not self._peer_speaks_remoting
        return Unavailable("broker_unreachable", SILENT if is_silent else "ask again", **facts)

    @property
    def _shown_address(self) -> str:
        host, port = self._address
        return f"{host}:{port}"

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._signer, self._is_admitted = chosen_signer(self._credentials), False
            try:
                self._socket = self._connect()
            except ssl.SSLCertVerificationError as error:
                raise tls_failed(self._shown_address, REFUSED, error) from error
            except OSError as error:
                raise Unavailable(
                    "broker_unreachable",
                    "is it running, and is this its address?"
                    if self._tls is None
                    else "is it running with TLS, and is this its address?",
                    address=self._shown_address,
                    cause=str(error),
                ) from error
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peer_speaks_remoting, self._head = False, b""
        return self._socket

    def _connect(self) -> socket.socket:
        # Unusable files are told before anything is sent.
        context = None if self._tls is None else client_context(self._tls)
        plain = socket.create_connection(self._address, self._connect_s)
        if self._tls is None or context is None:
            return plain
        try:
            name = self._tls.server_name or self._address[0]
            return context.wrap_socket(plain, server_hostname=name)
        except BaseException:
            plain.close()
            raise

    def _answer(
        self, connection: socket.socket, until: float, *, is_body_copied: bool
    ) -> RemotingFrame:
        while True:
            first = _received(connection, _WORD_BYTES, until)
            self._head = bytes(first)
            # Receive a large response directly into its final buffer.
            payload = bytearray(frame_size(first))
            rest = memoryview(payload)
            _receive(connection, rest[:_WORD_BYTES], until)
            self._head += payload[:_WORD_BYTES]
            _receive(connection, rest[_WORD_BYTES:], until)
            frame = decode_frame(payload, is_body_copied=is_body_copied)
            self._peer_speaks_remoting = True
            # Skip requests and notices from the broker; this client does not answer them.
            if frame.is_response and frame.opaque == self._opaque:
                return frame


def _received(connection: socket.socket, size: int, until: float) -> bytearray:
    data = bytearray(size)
    _receive(connection, memoryview(data), until)
    return data


def _receive(connection: socket.socket, view: memoryview, until: float) -> None:
    """Fill the view."""
    while view:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left_s)
        received = connection.recv_into(view)
        if not received:
            raise ConnectionResetError("the broker hung up")
        view = view[received:]


def _pages(
    call: Callable[[NativeCode, NativeHeader], PageT], code: NativeCode, header: NativeHeader | None
) -> Iterator[PageT]:
    asked = NATIVE_REQUESTS[code].header() if header is None else header
    while True:
        answer = call(code, asked)
        yield answer
        if answer.header.cursor is None:
            return
        asked = msgspec.structs.replace(asked, cursor=answer.header.cursor)
