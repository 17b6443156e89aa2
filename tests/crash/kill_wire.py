"""Messages between the clients and the victim: msgpack after a length."""

from __future__ import annotations

import asyncio

import msgspec

from escrowmq.model.errors import RequestRefused
from escrowmq.store.reading.reader import Pulled
from escrowmq.transaction import commands as c
from escrowmq.transaction.recall_commands import RecallReply

_LENGTH_BYTES = 4
_encoder = msgspec.msgpack.Encoder()


class Pull(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the visible messages from this queue offset on."""

    topic: str
    queue_id: int
    offset: int


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal and its facts."""

    code: str
    by: str = ""
    at_ms: int = 0
    state: str = ""
    half_offset: int = -1


class Done(msgspec.Struct, frozen=True):
    """The command was executed, and the reply has no content."""


Written = c.Prepare | c.Append | c.End | c.CheckSent | c.Park | c.Resume
Asked = Written | Pull
Answered = c.HoldReply | c.Appended | c.EndReply | Pulled | Refused | Done

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(c.Prepare, c.Append, c.End, c.CheckSent, c.Park, c.Resume, Pull),
        *(c.HoldReply, c.Appended, c.EndReply, Pulled, Refused, Done),
    )
}


class _Envelope(msgspec.Struct, array_like=True):
    number: int
    kind: str
    content: msgspec.Raw


def packed(number: int, content: Asked | Answered) -> bytes:
    """Encode one frame."""
    raw = msgspec.Raw(_encoder.encode(content))
    data = _encoder.encode(_Envelope(number, type(content).__name__, raw))
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


async def receive(reader: asyncio.StreamReader) -> tuple[int, Asked | Answered]:
    """Read the next frame; raises IncompleteReadError at the end."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    data = await reader.readexactly(length)
    envelope = msgspec.msgpack.decode(data, type=_Envelope)
    content: Asked | Answered = msgspec.msgpack.decode(envelope.content, type=_KINDS[envelope.kind])
    return envelope.number, content


def answer_to(decision: c.Decision) -> Answered:
    """Answer for a decision, as a client gets it."""
    if decision.refused is not None:
        return _refused(decision.refused)
    if decision.reply is None:
        return Done()
    assert not isinstance(decision.reply, c.BatchReply | c.Obeyed | c.Cataloged | RecallReply)
    return decision.reply


def _refused(refused: RequestRefused) -> Refused:
    known = {
        name: refused.fields[name]
        for name in Refused.__struct_fields__[1:]
        if name in refused.fields
    }
    return msgspec.convert({"code": refused.code, **known}, Refused)
