"""EscrowMQ's own requests over a peer's connection."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from escrowmq.protocol.message.properties import format_properties
from escrowmq.protocol.native.frames import NativeReply, encode_call, read_answer
from escrowmq.protocol.native.headers import HoldHeader, NativeHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.native.rows import DecisionRow, SentInRow, SentRow
from tests.unit.broker.wire import T0, Peer

#: Starts above the numbers of ordinary requests.
_opaque = count(1_000_000)


async def ask(
    peer: Peer, code: NativeCode, header: NativeHeader | None = None, rows: Sequence[NativeRow] = ()
) -> NativeReply:
    """Send a request and return its answer; raise if it is refused."""
    opaque = next(_opaque)
    peer.write(encode_call(code, opaque, header, rows))
    frame = await peer.until(lambda one: one.is_response and one.opaque == opaque)
    return read_answer(code, frame)


async def all_rows(peer: Peer, code: NativeCode, header: Any) -> list[Any]:  # noqa: ANN401 - any paged header
    """Return the rows of all pages."""
    import msgspec

    rows: list[Any] = []
    while True:
        answer = await ask(peer, code, header)
        rows += answer.rows
        if answer.header.cursor is None:
            return rows
        header = msgspec.structs.replace(header, cursor=answer.header.cursor)


def sent(body: bytes = b"body", topic: str = "orders", queue_id: int = 1, **pairs: str) -> SentRow:
    """Return a message of a bulk request."""
    return SentRow(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=format_properties(pairs).decode(),
        flag=7,
        sys_flag=0,
        born_at_ms=T0 - 5,
    )


def sent_in(transaction_id: str, body: bytes = b"body", topic: str = "orders") -> SentInRow:
    """Return a half message of a request that holds many transactions."""
    return SentInRow(
        transaction_id=transaction_id,
        topic=topic,
        queue_id=1,
        body=body,
        properties="",
        flag=0,
        sys_flag=0,
        born_at_ms=T0,
    )


async def hold(peer: Peer, transaction_id: str, *rows: SentRow, **fields: Any) -> NativeReply:  # noqa: ANN401
    """Hold half messages of one transaction."""
    values = {"producer_group": "pay", "number": 0, **fields}
    header = HoldHeader(transaction_id=transaction_id, **values)
    return await ask(peer, NativeCode.HOLD_HALVES, header, rows or (sent(),))


async def decide(peer: Peer, half_offset: int, resolution: str = "commit") -> Any:  # noqa: ANN401
    """Decide one transaction."""
    row = DecisionRow(
        half_offset=half_offset, resolution=resolution, producer_group=None, log_offset=None
    )
    return (await ask(peer, NativeCode.DECIDE_MANY, rows=[row])).rows[0]
