"""A request, how it is answered, and what RocketMQ's clients are told when it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.state.counting import LONG_POLL, ONE_WAY, Rpcs
from escrowmq.model.errors import EscrowError, ProtocolViolation, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.protocol.native.headers import NativeRefusal
from escrowmq.protocol.native.requests import is_native
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.protocol.remoting.frames import RemotingFrame, encode_response, response_head
from escrowmq.protocol.remoting.headers import Header, read_header

if TYPE_CHECKING:
    from escrowmq.broker.access.known_users import KnownUser

log = event_log(__name__)

HeaderT = TypeVar("HeaderT", bound=Header)
MethodT = TypeVar("MethodT", bound=Callable[..., None])

#: RocketMQ's response codes for our refusals; ``_code_of`` gives the code for any other.
RESPONSE_CODES: dict[str, ResponseCode] = {
    "batch_illegal": ResponseCode.MESSAGE_ILLEGAL,
    "body_too_large": ResponseCode.MESSAGE_ILLEGAL,
    "credentials_malformed": ResponseCode.NO_PERMISSION,
    "credentials_wrong": ResponseCode.NO_PERMISSION,
    "delay_illegal": ResponseCode.MESSAGE_ILLEGAL,
    "disk_full": ResponseCode.SERVICE_NOT_AVAILABLE,
    "filter_malformed": ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    "group_forbidden": ResponseCode.NO_PERMISSION,
    "group_illegal": ResponseCode.INVALID_PARAMETER,
    "group_unknown": ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    "inbox_full": ResponseCode.SYSTEM_BUSY,
    "invisible_time_illegal": ResponseCode.INVALID_PARAMETER,
    "message_type_wrong": ResponseCode.NO_PERMISSION,
    "name_illegal": ResponseCode.INVALID_PARAMETER,
    "name_too_long": ResponseCode.INVALID_PARAMETER,
    "no_such_delayed_message": ResponseCode.ILLEGAL_OPERATION,
    "not_allowed": ResponseCode.NO_PERMISSION,
    "not_authenticated": ResponseCode.NO_PERMISSION,
    "other_user": ResponseCode.NO_PERMISSION,
    "pop_count_illegal": ResponseCode.INVALID_PARAMETER,
    "pop_of_retries": ResponseCode.NO_PERMISSION,
    "properties_too_large": ResponseCode.MESSAGE_ILLEGAL,
    "queue_id_illegal": ResponseCode.INVALID_PARAMETER,
    "recall_handle_illegal": ResponseCode.ILLEGAL_OPERATION,
    "recall_too_late": ResponseCode.ILLEGAL_OPERATION,
    "receipt_malformed": ResponseCode.INVALID_PARAMETER,
    "receipt_stale": ResponseCode.NO_MESSAGE,
    "replayed": ResponseCode.NO_PERMISSION,
    "request_too_old": ResponseCode.NO_PERMISSION,
    "retry_policy_illegal": ResponseCode.INVALID_PARAMETER,
    "store_failed": ResponseCode.SERVICE_NOT_AVAILABLE,
    "subscription_outdated": ResponseCode.SUBSCRIPTION_NOT_LATEST,
    "subscription_unknown": ResponseCode.SUBSCRIPTION_NOT_EXIST,
    "tls_required": ResponseCode.NO_PERMISSION,
    "topic_illegal": ResponseCode.INVALID_PARAMETER,
    "topic_not_readable": ResponseCode.NO_PERMISSION,
    "topic_not_writable": ResponseCode.NO_PERMISSION,
    "topic_of_system": ResponseCode.NO_PERMISSION,
    "topic_unknown": ResponseCode.TOPIC_NOT_EXIST,
    "user_disabled": ResponseCode.NO_PERMISSION,
    "writer_closed": ResponseCode.SERVICE_NOT_AVAILABLE,
}


class Request:
    """One frame of one connection."""

    __slots__ = ("_began", "_rpcs", "caller", "connection", "frame", "has_waited")

    def __init__(self, connection: ClientConnection, frame: RemotingFrame, rpcs: Rpcs) -> None:
        self.connection = connection
        self.frame = frame
        #: The user that signed it; None without access control.
        self.caller: KnownUser | None = None
        #: Whether it waited in a long poll.
        self.has_waited = False
        self._rpcs = rpcs
        self._began = perf_counter()

    @property
    def source(self) -> ClientConnection:
        """The sender; the writer shares its batches fairly among senders."""
        return self.connection

    @property
    def user(self) -> str:
        """The name of its user; empty without access control."""
        return "" if self.caller is None else self.caller.name

    @property
    def by(self) -> str:
        """The name that records of decisions have: its user's, or else what the client says."""
        return self.user or self.connection.peer

    def owe(self) -> None:
        """Count it as a request whose answer comes later."""
        self.connection.owe()

    def answered(self) -> None:
        """Count its answer, which comes now, as no longer owed."""
        self.connection.answered()

    def header(self, kind: type[HeaderT]) -> HeaderT:
        """Decode the fields of its header."""
        return read_header(kind, self.frame.ext)

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        *,
        header: Header | None = None,
        remark: str = "",
        body: bytes = b"",
    ) -> None:
        """Answer it, unless it is one-way."""
        self.note(code)
        if not self.frame.is_one_way:
            self.connection.send(
                encode_response(self.frame, code, header=header, remark=remark, body=body)
            )

    def answer_parts(self, header: Header, parts: Sequence[bytes | memoryview]) -> None:
        """Answer it with a large body, whose parts are joined once."""
        self.note(ResponseCode.SUCCESS)
        if not self.frame.is_one_way:
            size = sum(map(len, parts))
            head = response_head(self.frame, ResponseCode.SUCCESS, header=header, body_bytes=size)
            self.connection.send(b"".join((head, *parts)))

    def note(self, code: int) -> None:
        """Count it as answered with this code; for callers that send the answer themselves."""
        frame = self.frame
        flags = LONG_POLL if self.has_waited else 0
        if frame.is_one_way:
            flags |= ONE_WAY
        self._rpcs.note(frame.code, code, self._began, flags)

    def decline(self, error: BaseException) -> None:
        """Answer with an error."""
        if isinstance(error, EscrowError):
            self._rpcs.refused[error.code] += 1
            # Our own clients raise the same error; stock ones read the remark.
            header = refusal(error) if is_native(self.frame.code) else None
            code = RESPONSE_CODES.get(error.code, _code_of(error))
            self.answer(code, header=header, remark=str(error))
            return
        self._rpcs.refused["request_failed"] += 1
        log.error("request_failed", extra={"code": self.frame.code}, exc_info=error)
        self.answer(ResponseCode.SYSTEM_ERROR, remark="the broker failed; its log says why")


Handler = Callable[[Request], None]
Handlers = Mapping[int, Handler]


def handles(*codes: int) -> Callable[[MethodT], MethodT]:
    """Mark a method of a part as the handler of requests with these codes."""

    def mark(method: MethodT) -> MethodT:
        method.codes = codes  # type: ignore[attr-defined]  # a function takes any attribute
        return method

    return mark


def handlers_of(part: object) -> dict[int, Callable[..., None]]:
    """Return the handlers of a part, by request code."""
    return {
        code: getattr(part, name)
        for name, method in vars(type(part)).items()
        for code in getattr(method, "codes", ())
    }


def refusal(error: EscrowError) -> NativeRefusal:
    """Return an error as the header that our own clients read."""
    retry_after_ms = error.retry_after_ms if isinstance(error, Unavailable) else None
    return NativeRefusal(error=error.code, kind=type(error).__name__, retry_after_ms=retry_after_ms)


def _code_of(error: EscrowError) -> ResponseCode:
    if isinstance(error, Unavailable):
        return ResponseCode.SYSTEM_BUSY
    if isinstance(error, ProtocolViolation):
        return ResponseCode.INVALID_PARAMETER
    return ResponseCode.SYSTEM_ERROR
