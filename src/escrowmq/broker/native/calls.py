"""Reads and answers native requests, according to ``protocol/native/requests.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from escrowmq.broker.net.answering import Answering
from escrowmq.broker.net.requests import Handlers, MethodT, Request, handlers_of, handles
from escrowmq.broker.write.store_time import StoreClock
from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.native.columns import BodyColumns, decode_columns
from escrowmq.protocol.native.headers import ListHeader, NativeAnswer, NativeHeader, PagedHeader
from escrowmq.protocol.native.number_blocks import NumberBlock, encode_blocks
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode, NativeRequest
from escrowmq.protocol.native.row_forms import (
    RowColumns,
    RowForm,
    RowT,
    chosen_columns,
    decode_rows,
    encode_columns,
    is_loaded,
    load_arrow,
)
from escrowmq.protocol.remoting.frames import FRAME_BYTES_MAX
from escrowmq.protocol.remoting.headers import read_header

if TYPE_CHECKING:
    from escrowmq.broker.net.admitting import RemotingAdmission

ANSWER_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024
"""Most bytes of rows in one answer; with its header it is still a frame that any client accepts."""

PAGE_S_MAX = 0.004
"""About how long a page of many rows may block other clients; the caller asks again for more."""

PAGE_ROWS_BESIDE = 2_000
"""Most rows in a page while clients are sending, because they wait for it."""

ColumnMakers = Mapping[str, Callable[[], Sized]]
"""By name, the functions that make the columns, called only for wanted columns."""

ROWS_ANY = 2**31 - 1
HeaderT = TypeVar("HeaderT", bound=NativeHeader)
KeyT = TypeVar("KeyT")


class Call(Generic[HeaderT]):
    """One native request, with its decoded header."""

    __slots__ = ("_calls", "_columns", "_rows", "header", "request", "spec")

    def __init__(self, calls: CallHandling, request: Request, spec: NativeRequest) -> None:
        self._calls = calls
        self.request = request
        self.spec = spec
        #: The decoded rows, which access control and the handler share.
        self._rows: list[Any] | None = None
        self._columns: BodyColumns | None = None
        self.header: HeaderT = read_header(spec.header, request.frame.ext)  # type: ignore[assignment]  # the table's
        if self.header.version != spec.version:
            raise RequestRefused(
                "schema_version_unknown",
                f"the version is {spec.version}",
                version=self.header.version,
            )
        if request.caller is not None and hasattr(self.header, "by"):
            # The log records who signed a request, not who it says that it is.
            self.header = msgspec.structs.replace(self.header, by=request.user)

    @property
    def by(self) -> str:
        """The user's or the peer's name, for the record."""
        return self.request.by

    def rows(self, kind: type[RowT]) -> list[RowT]:
        """Decode the rows of the request."""
        spec = self.spec
        assert kind is spec.rows
        if self._rows is None:
            body = self.request.frame.body
            self._rows = decode_rows(
                self.header.form, kind, spec.version, body, rows_max=spec.rows_max
            )
        return self._rows

    def columns(self, kind: type[RowT]) -> BodyColumns:
        """Decode the rows as columns, for thousands of rows."""
        spec = self.spec
        assert kind is spec.rows
        if self._columns is None:
            body = self.request.frame.body
            self._columns = decode_columns(
                self.header.form, kind, spec.version, body, rows_max=spec.rows_max
            )
        return self._columns

    def limit(self, rows_max: int = ROWS_ANY) -> int:
        """Return how many rows the answer may have."""
        assert isinstance(self.header, PagedHeader)
        wanted = self.header.limit if self.header.limit > 0 else rows_max
        limit = min(wanted, rows_max, self.spec.answer_rows_max)
        return min(limit, PAGE_ROWS_BESIDE) if self.is_beside_senders else limit

    def page_of(
        self, keys: Iterable[KeyT], kind: type[KeyT], rows_max: int = ROWS_ANY
    ) -> tuple[list[KeyT], str | None]:
        """Return the keys of this page, sorted, and the cursor for the next page or None."""
        assert isinstance(self.header, PagedHeader)
        cursor, limit = self.header.cursor, self.limit(rows_max)
        if cursor:
            try:
                last = msgspec.json.decode(cursor, type=kind)
            except msgspec.MsgspecError:
                raise cursor_malformed(cursor) from None
            keys = (key for key in keys if key > last)  # type: ignore[operator]  # as below
        left = sorted(keys)  # type: ignore[type-var]  # texts, or tuples of texts and numbers
        if len(left) <= limit:
            return left, None
        return left[:limit], msgspec.json.encode(left[limit - 1]).decode()

    @property
    def is_beside_senders(self) -> bool:
        """Whether clients are sending now, so that long work must be done in small pieces."""
        return self._calls.answering.writer.pace.is_in_use

    @property
    def wanted_columns(self) -> list[str]:
        """The columns that the answer must have."""
        assert self.spec.answer_rows is not None
        header: NativeHeader = self.header
        names = ""
        if isinstance(header, ListHeader) and header.form is RowForm.ARROW:
            names = header.columns
        return [column.name for column in chosen_columns(self.spec.answer_rows, names)]

    def answer_list(self, columns: ColumnMakers, **fields: Any) -> None:  # noqa: ANN401 - of the answer's header
        """Answer with the wanted columns; the others are not made."""
        assert isinstance(self.header, ListHeader)
        made = [columns[name]() for name in self.wanted_columns]
        self.answer(made, self.header.columns, **fields)

    def answer(self, columns: RowColumns | None = None, names: str = "", **fields: Any) -> None:  # noqa: ANN401 - of the answer's header
        """Answer with all or the named ones of these columns, and with fields of the header."""
        spec, form = self.spec, self.header.form
        body, count = b"", 0
        if columns is not None:
            assert spec.answer_rows is not None
            count = len(columns[0])
            body = encode_columns(form, spec.answer_rows, spec.version, columns, names)
            if len(body) > ANSWER_BYTES_MAX:
                raise RequestRefused(
                    "answer_too_large",
                    f"an answer has at most {ANSWER_BYTES_MAX} bytes; ask for fewer rows",
                    rows=count,
                    bytes=len(body),
                )
        self.request.answer(header=self._answered(count, fields), body=body)

    def answer_blocks(
        self,
        columns: Sequence[NumberBlock],
        data: memoryview,
        **fields: Any,  # noqa: ANN401 - of the answer's header
    ) -> None:
        """Answer with these columns of numbers, followed by these bytes."""
        spec = self.spec
        assert spec.answer_bytes
        assert spec.answer_rows is not None
        blocks = encode_blocks(spec.answer_rows, columns)
        self.request.answer_parts(self._answered(len(columns[0]), fields), [*blocks, data])

    def _answered(self, count: int, fields: dict[str, Any]) -> NativeAnswer:
        fields.setdefault("now_ms", self._calls.clock.now_ms())
        fields.setdefault("epoch", self._calls.answering.store.core.lineage.epoch)
        spec = self.spec
        return spec.answer(form=self.header.form, version=spec.version, row_count=count, **fields)

    def answer_rows(self, rows: Iterable[Sequence[object]], **fields: Any) -> None:  # noqa: ANN401
        """Answer with these rows, whose values are in column order."""
        assert self.spec.answer_rows is not None
        width = len(self.spec.answer_rows.__struct_fields__)
        self.answer(list(zip(*rows, strict=True)) or [[] for _ in range(width)], **fields)


CallHandler = Callable[[Call[Any]], None]


def looks(*codes: NativeCode) -> Callable[[MethodT], MethodT]:
    """Mark a method as the handler of questions with these codes.

    It runs between two batches, when memory holds exactly what is durable.
    """

    def mark(method: MethodT) -> MethodT:
        method.is_question = True  # type: ignore[attr-defined]  # a function takes any attribute
        return handles(*codes)(method)

    return mark


@dataclass(frozen=True, slots=True)
class CallHandling:
    """Reads native requests, and passes them to the handlers of calls."""

    clock: StoreClock
    answering: Answering
    #: Checks what a call needs; None without access control.
    admission: RemotingAdmission | None = None

    def handlers_of(self, part: object) -> Handlers:
        """Return a part's handlers, which take calls, as handlers that take requests."""
        return {
            code: partial(self._handle, self._in_turn(handler))
            for code, handler in handlers_of(part).items()
        }

    def _in_turn(self, handler: CallHandler) -> CallHandler:
        """Return the handler, or for a question, one that runs it between two batches."""
        if not getattr(handler, "is_question", False):
            return handler
        return lambda call: self.answering.look(call.request, partial(handler, call))

    def _handle(self, handler: CallHandler, request: Request) -> None:
        call: Call[Any] = Call(self, request, NATIVE_REQUESTS[request.frame.code])
        if is_loaded(call.header.form):
            self._checked(handler, call)
            return
        # The first request in Arrow's form: import it in a thread, so that other clients go on.
        connection = request.connection
        connection.owe()

        def loaded(loading: asyncio.Future[None]) -> None:
            def run() -> None:
                loading.result()
                self._checked(handler, call)

            connection.answered()
            self.answering.attempt(request, run)

        asyncio.get_running_loop().run_in_executor(None, load_arrow).add_done_callback(loaded)

    def _checked(self, handler: CallHandler, call: Call[Any]) -> None:
        if self.admission is not None:
            self.admission.check(call)
        handler(call)


# Cursors.


def offset_cursor(cursor: str, start: int) -> int:
    """Return where a page of a range of offsets begins."""
    if not cursor:
        return start
    try:
        return max(int(cursor), start)
    except ValueError:
        raise cursor_malformed(cursor) from None


def cursor_malformed(cursor: str) -> ProtocolViolation:
    """Return the error for a cursor that the broker did not issue."""
    return ProtocolViolation(
        "cursor_malformed", "pass the cursor that the last page returned", cursor=cursor[:64]
    )
