"""Requests of gRPC clients: how one is read, handed to the handler of its method, and answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError

from escrowmq.broker.grpc.codes import OK, status_of
from escrowmq.broker.net.peers import pack_peer
from escrowmq.broker.state.counting import LONG_POLL, Rpcs
from escrowmq.model.errors import EscrowError, ProtocolViolation, RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.protocol.grpc import messages
from escrowmq.protocol.message.limits import NAME_CHARS_MAX
from escrowmq.protocol.remoting.codes import UNKNOWN_LANGUAGE

if TYPE_CHECKING:
    from escrowmq.broker.net.answering import Answering
    from escrowmq.broker.net.grpc_call import GrpcCall
    from escrowmq.broker.net.grpc_connection import GrpcConnection
    from escrowmq.protocol.grpc.messages import GrpcMessage

log = event_log(__name__)

CLIENT_ID = b"x-mq-client-id"
LANGUAGE = b"x-mq-language"
#: Addresses whose packed form is cached.
PEERS_MAX = 16_384

MethodT = TypeVar("MethodT", bound=Callable[..., None])
packed_peer = lru_cache(PEERS_MAX)(pack_peer)


class WithStatus(Protocol):
    """The class of an answer: every answer has a status."""

    def __call__(self, *, status: messages.Status) -> GrpcMessage:
        """Make an answer that has nothing but its status."""
        ...


class GrpcMethod(NamedTuple):
    """One method of the service, except Telemetry."""

    name: str
    #: Its number in the counters.
    number: int
    request: type[GrpcMessage]
    response: WithStatus
    #: Whether the answer is a stream of messages.
    is_streamed: bool


class GrpcRequest:
    """One call of a method."""

    __slots__ = ("_began", "_method", "_rpcs", "call", "client_id", "closed", "has_waited")

    def __init__(self, call: GrpcCall, method: GrpcMethod, rpcs: Rpcs) -> None:
        self.call = call
        self.client_id = client_id_of(call)
        #: Called if the call ends before its answer.
        self.closed: Callable[[], None] | None = None
        #: Whether it waited in a long poll.
        self.has_waited = False
        self._method = method
        self._rpcs = rpcs
        self._began = perf_counter()

    @property
    def source(self) -> GrpcConnection:
        """The sender; the writer shares its batches fairly among senders."""
        return self.call.connection

    @property
    def user(self) -> str:
        """The name of its user; empty without access control."""
        caller = self.call.connection.caller
        return "" if caller is None else caller.name

    @property
    def by(self) -> str:
        """The name that records of decisions have: its user's, or else what the client says."""
        return self.user or self.client_id

    @property
    def born_host(self) -> bytes:
        """The client's address, in the form that stored messages use."""
        return packed_peer(self.call.peer_host, self.call.peer_port)

    def owe(self) -> None:
        """Do nothing: the door limits the calls that a connection has open."""

    def answered(self) -> None:
        """Do nothing, as ``owe`` does."""

    def answer(self, response: GrpcMessage, code: int = OK) -> None:
        """Send the whole answer; ``code`` is that of its status."""
        self.answer_with(response.SerializeToString(), code)

    def answer_with(self, data: bytes, code: int = OK) -> None:
        """Send the whole answer, which is encoded."""
        self.note(code)
        if self._method.is_streamed:
            self.call.send(data)
            self.call.end()
        else:
            self.call.answer(data)

    def note(self, code: int) -> None:
        """Count the request as answered with this code; for callers that send the answer."""
        # From here on, the end of the call does not mean that the client has gone.
        self.closed = None
        flags = LONG_POLL if self.has_waited else 0
        self._rpcs.note(self._method.number, code, self._began, flags)

    def decline(self, error: BaseException) -> None:
        """Answer with an error."""
        if isinstance(error, EscrowError):
            self._rpcs.refused[error.code] += 1
        else:
            self._rpcs.refused["request_failed"] += 1
            log.error("request_failed", extra={"method": self._method.name}, exc_info=error)
        status = status_of(error)
        self.answer(self._method.response(status=status), status.code)

    # Events of a streamed answer.

    def on_message(self, message: bytes) -> None:
        """Ignore a further message of the client: its request was complete."""

    def on_half_close(self) -> None:
        """Ignore the end of the client's messages: its request was complete."""

    def on_closed(self) -> None:
        """Stop waiting, if the call ended before its answer."""
        if self.closed is not None:
            self.closed()


Handler = Callable[[GrpcRequest, "GrpcMessage"], None]


def serves(name: str) -> Callable[[MethodT], MethodT]:
    """Mark a method of a part as the handler of this method of the service."""

    def mark(method: MethodT) -> MethodT:
        method.served = name  # type: ignore[attr-defined]  # a function takes any attribute
        return method

    return mark


def served_by(part: object) -> dict[str, Handler]:
    """Return the handlers of a part, by the names of their methods."""
    return {
        method.served: getattr(part, name)
        for name, method in vars(type(part)).items()
        if hasattr(method, "served")
    }


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A method and its handler."""

    answering: Answering
    rpcs: Rpcs
    method: GrpcMethod
    handler: Handler
    #: Checks what a message needs; None without access control.
    check: Callable[[GrpcRequest, str, GrpcMessage], None] | None = None

    def serve(self, call: GrpcCall, data: bytes) -> GrpcRequest | None:
        """Read and handle a call's request; return it if it must hear of the call's end."""
        method = self.method
        request = GrpcRequest(call, method, self.rpcs)
        try:
            check_client_id(request.client_id)
            read = method.request.FromString(data)
        except RequestRefused as refused:
            request.decline(refused)
        except DecodeError:
            request.decline(ProtocolViolation("request_malformed", "not a message of this method"))
        else:
            handler = self.handler if self.check is None else self._checked
            self.answering.attempt(request, partial(handler, request, read))
        return request if method.is_streamed else None

    def _checked(self, request: GrpcRequest, read: GrpcMessage) -> None:
        assert self.check is not None
        self.check(request, self.method.name, read)
        self.handler(request, read)


def client_id_of(call: GrpcCall) -> str:
    """Return the id that a client gave itself; empty if it gave none."""
    return (call.header(CLIENT_ID) or b"").decode(errors="replace")


def language_of(call: GrpcCall) -> str:
    """Return the language that a client is written in, as it says."""
    language = (call.header(LANGUAGE) or b"").decode(errors="replace")
    return language[:NAME_CHARS_MAX] or UNKNOWN_LANGUAGE


def check_client_id(client_id: str) -> None:
    """Refuse a client without an id, or with one that is too long."""
    if not 1 <= len(client_id) <= NAME_CHARS_MAX:
        raise RequestRefused(
            "client_id_missing",
            f"send the header {CLIENT_ID.decode()} with 1 to {NAME_CHARS_MAX} characters",
            chars=len(client_id),
        )
