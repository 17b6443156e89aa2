"""One of our own requests, read and answered as the table in ``protocol/own.py`` says."""

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
"""Rows in one answer: with the header they are a frame that any client takes."""

PAGE_S_MAX = 0.004
"""How long others wait for a page of many rows, about: whoever wants more asks again."""

PAGE_ROWS_BESIDE = 2_000
"""Rows of a page while clients are sending, who would wait for it."""

ColumnMakers = Mapping[str, Callable[[], Sized]]
"""How each column is made, if it is wanted."""

HeaderT = TypeVar("HeaderT", bound=OwnHeader)
KeyT = TypeVar("KeyT")


class Call(Generic[HeaderT]):
    """A request whose header was read."""

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
        """Who asks, for the record."""
        return self.request.connection.peer

    def rows(self, kind: type[RowT]) -> list[RowT]:
        """The rows that it brings."""
        spec = self.spec
        assert kind is spec.rows
        return decode_rows(
            self.header.form, kind, spec.version, self.request.frame.body, rows_max=spec.rows_max
        )

    def columns(self, kind: type[RowT]) -> BodyColumns:
        """The same by columns, for rows by the thousand."""
        spec = self.spec
        assert kind is spec.rows
        return decode_columns(
            self.header.form, kind, spec.version, self.request.frame.body, rows_max=spec.rows_max
        )

    def limit(self, rows_max: int = 2**31 - 1) -> int:
        """How many rows the answer may have."""
        assert isinstance(self.header, PagedHeader)
        wanted = self.header.limit if self.header.limit > 0 else rows_max
        limit = min(wanted, rows_max, self.spec.answer_rows_max)
        return min(limit, PAGE_ROWS_BESIDE) if self.is_beside_senders else limit

    @property
    def is_beside_senders(self) -> bool:
        """Whether clients are sending: what takes long is to be done in small pieces."""
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
        """Answer with those of these columns that are wanted; the others are not even made."""
        assert isinstance(self.header, ListHeader)
        made = [columns[name]() for name in self.wanted_columns]
        self.answer(made, self.header.columns, **fields)

    def answer(self, columns: Columns | None = None, names: str = "", **fields: Any) -> None:  # noqa: ANN401 - of the answer's header
        """Answer with these columns, all or those that are named, and fields of its header."""
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
        """Answer with these numbers, and these bytes after them."""
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
        """Answer with these rows, each in the order of the columns."""
        assert self.spec.answer_rows is not None
        width = len(self.spec.answer_rows.__struct_fields__)
        self.answer(list(zip(*rows, strict=True)) or [[] for _ in range(width)], **fields)


CallHandler = Callable[[Call[Any]], None]


def own_handlers(broker: Broker, handlers: dict[OwnCode, CallHandler]) -> dict[int, Handler]:
    """Handlers of calls as handlers of requests."""
    return {code: partial(_handle, broker, handler) for code, handler in handlers.items()}


def _handle(broker: Broker, handler: CallHandler, request: Request) -> None:
    call: Call[Any] = Call(broker, request, OWN_REQUESTS[request.frame.code])
    if is_loaded(call.header.form):
        handler(call)
        return
    # The first of its kind: others do not wait for the import.
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
    """The same for questions: answered when memory holds exactly what is durable."""

    def look(handler: CallHandler, call: Call[Any]) -> None:
        broker.look(call.request, partial(handler, call))

    return own_handlers(
        broker, {code: partial(look, handler) for code, handler in handlers.items()}
    )


# Cursors.


def offset_cursor(cursor: str, start: int) -> int:
    """Where a page of a range of offsets begins."""
    if not cursor:
        return start
    try:
        return max(int(cursor), start)
    except ValueError:
        raise cursor_malformed(cursor) from None


def keys_after(keys: Iterable[KeyT], cursor: str, kind: type[KeyT]) -> list[KeyT]:
    """Keys in their order, from the one after the cursor on."""
    if not cursor:
        return sorted(keys)  # type: ignore[type-var]  # texts, or tuples of texts and numbers
    try:
        last = msgspec.json.decode(cursor, type=kind)
    except msgspec.MsgspecError:
        raise cursor_malformed(cursor) from None
    return sorted(key for key in keys if key > last)  # type: ignore[operator, type-var]


def key_cursor(keys: list[KeyT], limit: int) -> tuple[list[KeyT], str | None]:
    """The keys of a page, and the cursor for the next one."""
    if len(keys) <= limit:
        return keys, None
    return keys[:limit], msgspec.json.encode(keys[limit - 1]).decode()


def cursor_malformed(cursor: str) -> ProtocolViolation:
    """Say that the broker gave no such cursor."""
    return ProtocolViolation(
        "cursor_malformed", "give back what the last page said", cursor=cursor[:64]
    )
