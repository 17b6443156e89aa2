"""The telemetry stream of one client: its settings come in, back-checks go out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from escrowmq.broker.grpc.codes import code_of
from escrowmq.broker.grpc.requests import check_client_id, client_id_of, language_of, packed_peer
from escrowmq.broker.net.taking import Taking
from escrowmq.model.errors import EscrowError, ProtocolViolation, RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.protocol.grpc.enums import GrpcCode
from escrowmq.protocol.grpc.messages import Settings, TelemetryCommand
from escrowmq.protocol.http2.grpc_messages import GrpcStatus
from escrowmq.protocol.message.ids import format_address

if TYPE_CHECKING:
    from escrowmq.broker.access.known_users import KnownUser
    from escrowmq.broker.net.grpc_call import GrpcCall
    from escrowmq.broker.net.grpc_connection import GrpcConnection
    from escrowmq.broker.state.client_links import Taken

log = event_log(__name__)

UNSENT_BYTES_MAX = 1024 * 1024
"""Bytes that a client may leave unread before it gets no more back-checks."""
#: gRPC's own status codes, with which a failed telemetry stream ends.
INVALID_ARGUMENT = 3
INTERNAL = 13

_STATUSES = {
    GrpcCode.TOO_MANY_REQUESTS: GrpcStatus.RESOURCE_EXHAUSTED,
    GrpcCode.FORBIDDEN: GrpcStatus.PERMISSION_DENIED,
    GrpcCode.UNAUTHORIZED: GrpcStatus.UNAUTHENTICATED,
}

OnSettings = Callable[["TelemetryStream", Settings], None]
Gone = Callable[["TelemetryStream"], None]


class TelemetryStream:
    """One stream: the link to a client, and its request while settings are handled."""

    def __init__(self, call: GrpcCall, on_settings: OnSettings, gone: Gone) -> None:
        self.call = call
        self.client_id = client_id_of(call)
        self.language = language_of(call)
        self.host = packed_peer(call.peer_host, call.peer_port)
        #: Offsets that the broker told this client, by topic, queue and incarnation of the topic.
        self.told: dict[tuple[str, int, int], int] = {}
        self._on_settings = on_settings
        self._gone = gone
        self._taking = Taking()
        self._sent_bytes = 0

    # Events of the call.

    def on_message(self, message: bytes) -> None:
        """Take a client's settings; ignore answers to questions that the broker never asks."""
        try:
            check_client_id(self.client_id)
            command = TelemetryCommand.FromString(message)
        except RequestRefused as refused:
            self.decline(refused)
        except DecodeError:
            self.decline(ProtocolViolation("request_malformed", "not a valid telemetry command"))
        else:
            if command.WhichOneof("command") == "settings":
                self._on_settings(self, command.settings)

    def on_half_close(self) -> None:
        """End the stream, because its client has ended its side."""
        self.call.end()

    def on_closed(self) -> None:
        """Forget the client."""
        self._taking.give_up()
        self._gone(self)

    # The link to the client.

    @property
    def address(self) -> str:
        """The client's address."""
        return format_address(self.call.peer_host, self.call.peer_port)

    @property
    def caller(self) -> KnownUser | None:
        """The user of the client's connection; None without access control."""
        return self.call.connection.caller

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        return self.call.is_open

    @property
    def has_room(self) -> bool:
        """Whether the client keeps up with reading."""
        return self.call.is_open and self._taking.has_room(self, UNSENT_BYTES_MAX)

    def send(self, data: bytes) -> None:
        """Send a command."""
        if self.call.send(data):
            self._sent_bytes += len(data)
            self._taking.handed(len(data), self)

    def send_and_tell(self, data: bytes, taken: Taken) -> None:
        """Send a command, and report whether the socket took it."""
        if not self.call.is_open:
            taken(is_taken=False)
            return
        self._taking.expect(len(data), taken)
        self.send(data)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes of this stream, at most, have not left the broker yet."""
        # The socket also holds bytes of the connection's other calls.
        return min(self.call.unsent_bytes, self._sent_bytes)

    def is_closing(self) -> bool:
        """Return whether the remaining bytes may be lost."""
        return not self.call.is_open

    # The request whose answer is the broker's settings.

    @property
    def source(self) -> GrpcConnection:
        """The sender; the writer shares its batches fairly among senders."""
        return self.call.connection

    def owe(self) -> None:
        """Do nothing: the door limits the calls that a connection has open."""

    def answered(self) -> None:
        """Do nothing, as ``owe`` does."""

    def decline(self, error: BaseException) -> None:
        """End the stream: a client with wrong settings must not believe that it is known."""
        if not isinstance(error, EscrowError):
            log.error("request_failed", extra={"method": "Telemetry"}, exc_info=error)
            self.call.end(INTERNAL, "the broker failed; its log says why")
            return
        self.call.end(_STATUSES.get(code_of(error), INVALID_ARGUMENT), str(error))
