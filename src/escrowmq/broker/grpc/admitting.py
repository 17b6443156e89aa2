"""Lets gRPC calls in: finds their users from the headers, and checks what their messages need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.broker.access.common_needs import Asker
from escrowmq.broker.access.gate import UNKNOWN_CALLER
from escrowmq.broker.access.known_users import KnownUser
from escrowmq.broker.access.needs_grpc import GRPC_NEEDS, settings_needs
from escrowmq.broker.grpc.codes import code_of, status_of
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.protocol.grpc import messages
from escrowmq.protocol.grpc.definitions import path_of
from escrowmq.protocol.grpc.enums import GrpcCode
from escrowmq.protocol.http2.grpc_messages import GrpcStatus
from escrowmq.protocol.signing.grpc import SLACK_MS

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from escrowmq.access.needs import Needs
    from escrowmq.broker.access.gate import AccessGate
    from escrowmq.broker.access.stored_facts import StoredFacts
    from escrowmq.broker.grpc.requests import GrpcRequest
    from escrowmq.broker.grpc.telemetry_stream import TelemetryStream
    from escrowmq.broker.net.grpc_call import GrpcCall
    from escrowmq.protocol.grpc.messages import GrpcMessage, Settings

AUTHORIZATION = b"authorization"
DATE_TIME = b"x-mq-date-time"
SEEN_MS = SLACK_MS // 5
"""How long a header that was checked is accepted again on its connection without a check."""


class SeenHeader(NamedTuple):
    """The last header that was checked on a connection."""

    authorization: bytes
    date_time: bytes
    known: KnownUser
    until_s: float


@dataclass(frozen=True, slots=True)
class GrpcAdmission:
    """Asks the gate about gRPC calls."""

    gate: AccessGate
    facts: StoredFacts
    #: The user of the client with this id that has a telemetry stream; empty if there is none.
    user_of: Callable[[str], str]
    #: Counts refusals by the code of their error.
    refused: Counter[str]

    def admit(self, call: GrpcCall) -> bool:
        """Find the user of a call before its message; if there is none, refuse it."""
        try:
            call.connection.caller = self._known(call)
        except EscrowError as refused:
            self._refuse(call, refused)
            return False
        return True

    def _known(self, call: GrpcCall) -> KnownUser:
        connection = call.connection
        authorization = call.header(AUTHORIZATION) or b""
        date_time = call.header(DATE_TIME) or b""
        seen, now_s = connection.seen_header, connection.time()
        if (
            seen is not None
            and seen[:2] == (authorization, date_time)
            and now_s < seen.until_s
            and self.gate.users.is_current(seen.known)
        ):
            return seen.known
        known = self.gate.admit_grpc(
            connection, authorization.decode("latin-1"), date_time.decode("latin-1")
        )
        connection.seen_header = SeenHeader(
            authorization, date_time, known, now_s + SEEN_MS / 1_000
        )
        return known

    def _refuse(self, call: GrpcCall, refused: EscrowError) -> None:
        connection = call.connection
        host, now_s = connection.peer_host, connection.time()
        self.gate.note(refused, host, now_s, path=call.path.decode("latin-1"))
        call.is_refused = True
        self.refused[refused.code] += 1
        delay_s: float | None = 0.0
        if refused.code in UNKNOWN_CALLER:
            delay_s = self.gate.failures.note(host, now_s)
        if delay_s is None:
            connection.cut("login_failed", why=refused.code)
        elif delay_s == 0:
            _answer(call, refused)
        else:
            connection.later(delay_s, self._answer_late, call, refused)

    def _answer_late(self, call: GrpcCall, refused: EscrowError) -> None:
        self.gate.failures.answered(call.connection.peer_host)
        _answer(call, refused)

    def check(self, request: GrpcRequest, name: str, asked: GrpcMessage) -> None:
        """Refuse a request whose needs are not met."""
        asker = self._asker(request.call, request.client_id)
        self._require(request.call, asker, lambda: GRPC_NEEDS[name](asked, asker))

    def check_settings(self, stream: TelemetryStream, settings: Settings) -> None:
        """Refuse settings whose needs are not met."""
        asker = self._asker(stream.call, stream.client_id)
        self._require(stream.call, asker, lambda: settings_needs(settings))

    def _asker(self, call: GrpcCall, client_id: str) -> Asker:
        known = call.connection.caller
        assert known is not None, "the gate admitted it"
        return Asker(known, self.facts, call.connection, client_id)

    def _require(self, call: GrpcCall, asker: Asker, needs: Callable[[], Needs]) -> None:
        host = call.connection.peer_host
        try:
            self._refuse_other_client(asker)
            self.gate.require(asker.known, needs(), host)
        except RequestRefused as refused:
            if refused.code in ("not_allowed", "client_of_other_user"):
                now_s = call.connection.time()
                self.gate.note(refused, host, now_s, path=call.path.decode("latin-1"))
            raise

    def _refuse_other_client(self, asker: Asker) -> None:
        if self.user_of(asker.client_id) not in ("", asker.user):
            raise RequestRefused(
                "client_of_other_user",
                "another user's client has this id; give each client its own",
                user=asker.user,
            )


def _answer(call: GrpcCall, refused: EscrowError) -> None:
    """Answer a call that no user signed, in the form of its method."""
    response = _RESPONSES.get(call.path)
    if response is not None:
        call.answer(response(status=status_of(refused)).SerializeToString())
        return
    is_forbidden = code_of(refused) is GrpcCode.FORBIDDEN
    status = GrpcStatus.PERMISSION_DENIED if is_forbidden else GrpcStatus.UNAUTHENTICATED
    call.end(status, str(refused))


_RESPONSES = {
    path_of(name): getattr(messages, f"{name}Response")
    for name in GRPC_NEEDS
    if name != "Telemetry"
}
