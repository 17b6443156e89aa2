"""Reads and answers one of our own requests, according to the table in ``protocol/own.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from escrowmq.broker.requests import Handler, Request
from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.headers import read_header
from escrowmq.protocol.own import OWN_REQUESTS, OwnCode, OwnRequest
from escrowmq.protocol.own_blocks import Block, encode_blocks
from escrowmq.protocol.own_columns import BodyColumns, decode_columns
from escrowmq.protocol.own_forms import (
    Columns,
    Form,
    RowT,
    chosen_columns,
    decode_rows,
    encode_columns,
    is_loaded,
    load_arrow,
)
from escrowmq.protocol.own_headers import ListHeader, OwnAnswer, OwnHeader, PagedHeader
from escrowmq.protocol.remoting import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker

ANSWER_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024
"""Most bytes of rows in one answer; with its header it is still a frame that any client accepts."""

PAGE_S_MAX = 0.004
"""About how long a page of many rows may block other clients; the caller asks again for more."""

PAGE_ROWS_BESIDE = 2_000
"""Most rows in a page while clients are sending, because they wait for it."""

ColumnMakers = Mapping[str, Callable[[], Sized]]
"""By name, the functions that make the columns, called only for wanted columns."""

HeaderT = TypeVar("HeaderT", bound=OwnHeader)
KeyT = TypeVar("KeyT")


class Call(Generic[HeaderT]):
    """One of our own requests, with its decoded header."""

    __slots__ = ("broker", "header", "request", "spec")

    def __init__(self, broker: Broker, request: Request, spec: OwnRequest) -> None:
        self.broker = broker
        self.request = request
        self.spec = spec
        self.header: HeaderT = read_header(spec.header, request.frame.ext)  # type: ignore[assignment]  # the table's
        if self.header.version != spec.version:
            raise RequestRefused(
                "schema_version_unknown",
                f"the version is {spec.version}",
                version=self.header.version,
            )

    @property
    def by(self) -> str:
        """The peer's name, for the record."""
        return self.request.connection.peer

    def rows(self, kind: type[RowT]) -> list[RowT]:
        """Decode the rows of the request."""
        spec = self.spec
        assert kind is spec.rows
        return decode_rows(
            self.header.form, kind, spec.version, self.request.frame.body, rows_max=spec.rows_max
        )

    def columns(self, kind: type[RowT]) -> BodyColumns:
        """Decode the rows as columns, for thousands of rows."""
        spec = self.spec
        assert kind is spec.rows
        return decode_columns(
            self.header.form, kind, spec.version, self.request.frame.body, rows_max=spec.rows_max
        )

    def limit(self, rows_max: int = 2**31 - 1) -> int:
        """Return how many rows the answer may have."""
        assert isinstance(self.header, PagedHeader)
        wanted = self.header.limit if self.header.limit > 0 else rows_max
        limit = min(wanted, rows_max, self.spec.answer_rows_max)
        return min(limit, PAGE_ROWS_BESIDE) if self.is_beside_senders else limit

    @property
    def is_beside_senders(self) -> bool:
        """Whether clients are sending now, so that long work must be done in small pieces."""
        return self.broker.writer.is_in_use

    @property
    def wanted_columns(self) -> list[str]:
        """The columns that the answer must have."""
        assert self.spec.answer_rows is not None
        header: OwnHeader = self.header
        names = ""
        if isinstance(header, ListHeader) and header.form is Form.ARROW:
            names = header.columns
        return [column.name for column in chosen_columns(self.spec.answer_rows, names)]

    def answer_list(self, columns: ColumnMakers, **fields: Any) -> None:  # noqa: ANN401 - of the answer's header
        """Answer with the wanted columns; the others are not made."""
        assert isinstance(self.header, ListHeader)
        made = [columns[name]() for name in self.wanted_columns]
        self.answer(made, self.header.columns, **fields)

    def answer(self, columns: Columns | None = None, names: str = "", **fields: Any) -> None:  # noqa: ANN401 - of the answer's header
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
        columns: Sequence[Block],
        data: memoryview,
        **fields: Any,  # noqa: ANN401 - of the answer's header
    ) -> None:
        """Answer with these columns of numbers, followed by these bytes."""
        spec = self.spec
        assert spec.answer_bytes
        assert spec.answer_rows is not None
        blocks = encode_blocks(spec.answer_rows, columns)
        self.request.answer_parts(self._answered(len(columns[0]), fields), [*blocks, data])

    def _answered(self, count: int, fields: dict[str, Any]) -> OwnAnswer:
        fields.setdefault("now_ms", self.broker.clock.now_ms())
        fields.setdefault("epoch", self.broker.store.core.lineage.epoch)
        spec = self.spec
        return spec.answer(form=self.header.form, version=spec.version, row_count=count, **fields)

    def answer_rows(self, rows: Iterable[Sequence[object]], **fields: Any) -> None:  # noqa: ANN401
        """Answer with these rows, whose values are in column order."""
        assert self.spec.answer_rows is not None
        width = len(self.spec.answer_rows.__struct_fields__)
        self.answer(list(zip(*rows, strict=True)) or [[] for _ in range(width)], **fields)


CallHandler = Callable[[Call[Any]], None]


def own_handlers(broker: Broker, handlers: dict[OwnCode, CallHandler]) -> dict[int, Handler]:
    """Wrap handlers of calls as handlers of requests."""
    return {code: partial(_handle, broker, handler) for code, handler in handlers.items()}


def _handle(broker: Broker, handler: CallHandler, request: Request) -> None:
    call: Call[Any] = Call(broker, request, OWN_REQUESTS[request.frame.code])
    if is_loaded(call.header.form):
        handler(call)
        return
    # The first request in this form: import in a thread, so that other clients do not wait.
    connection = request.connection
    connection.owe()

    def loaded(loading: asyncio.Future[None]) -> None:
        connection.settle()
        try:
            loading.result()
        except Exception as error:  # noqa: BLE001 - as for any other request
            request.decline(error)
        else:
            broker.attempt(request, partial(handler, call))

    asyncio.get_running_loop().run_in_executor(None, load_arrow).add_done_callback(loaded)


def own_questions(broker: Broker, handlers: dict[OwnCode, CallHandler]) -> dict[int, Handler]:
    """Wrap handlers of questions, which run when memory holds exactly what is durable."""

    def look(handler: CallHandler, call: Call[Any]) -> None:
        broker.look(call.request, partial(handler, call))

    return own_handlers(
        broker, {code: partial(look, handler) for code, handler in handlers.items()}
    )


# Cursors.


def offset_cursor(cursor: str, start: int) -> int:
    """Return where a page of a range of offsets begins."""
    if not cursor:
        return start
    try:
        return max(int(cursor), start)
    except ValueError:
        raise cursor_malformed(cursor) from None


def keys_after(keys: Iterable[KeyT], cursor: str, kind: type[KeyT]) -> list[KeyT]:
    """Return the keys after the cursor, sorted."""
    if not cursor:
        return sorted(keys)  # type: ignore[type-var]  # texts, or tuples of texts and numbers
    try:
        last = msgspec.json.decode(cursor, type=kind)
    except msgspec.MsgspecError:
        raise cursor_malformed(cursor) from None
    return sorted(key for key in keys if key > last)  # type: ignore[operator, type-var]


def key_cursor(keys: list[KeyT], limit: int) -> tuple[list[KeyT], str | None]:
    """Return the keys of a page, and the cursor for the next page or None."""
    if len(keys) <= limit:
        return keys, None
    return keys[:limit], msgspec.json.encode(keys[limit - 1]).decode()


def cursor_malformed(cursor: str) -> ProtocolViolation:
    """Return the error for a cursor that the broker did not issue."""
    return ProtocolViolation(
        "cursor_malformed", "give back what the last page said", cursor=cursor[:64]
    )
