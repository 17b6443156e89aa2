"""Previews of the messages of a transaction: topic, keys, tags and the start of the body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.cli.output import human_bytes
from escrowmq.cli.preview import clipped, preview
from escrowmq.cli.txn.shapes import HeldMessageShape
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.properties import split_keys
from escrowmq.protocol.native.previews import (
    TRANSACTIONS_MAX,
    PreviewHalvesHeader,
    PreviewRow,
    SoughtHalfRow,
)
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.client.network.native_calls import NativeCalls

Previews = dict[int, list["PreviewRow"]]
"""Messages of transactions as far as the broker has them, by the first half message's number."""

MESSAGES_SHOWN = 20
"""The most messages of one transaction that `txn show` lists."""

NAME_WIDTH = 60
#: Bytes of each body to request: enough for a preview of a compressed body.
BODY_BYTES = 256

UNKNOWN = "its messages: deleted by retention, or the broker's release cannot show them"
MESSAGE_COLUMNS = ("topic", "queue", "keys", "tags", "body", "size", "id")


def previews_of(
    calls: NativeCalls,
    half_offsets: Sequence[int],
    *,
    messages_max: int = 1,
    is_required: bool = False,
) -> Previews:
    """Ask the broker for previews; a release without this request has none, unless required."""
    header = PreviewHalvesHeader(messages_max=messages_max, body_bytes=BODY_BYTES)
    found: Previews = {}
    left = [SoughtHalfRow(half_offset=half_offset) for half_offset in half_offsets]
    while left:
        try:
            answer = calls.call(NativeCode.PREVIEW_HALVES, header, left[:TRANSACTIONS_MAX])
        except RequestRefused as refused:
            if refused.code == "request_unsupported" and not is_required:
                return {}
            raise
        for row in answer.rows:
            found.setdefault(row.half_offset, []).append(row)
        left = left[max(answer.header.covered, 1) :]
    return found


def cells(held: Sequence[PreviewRow]) -> tuple[str | None, ...]:
    """Return the table cells of the first message: topic, keys, tags, body."""
    if not held:
        return (None, None, None, None)
    first = held[0]
    more = first.message_count - 1
    topic = f"{first.topic} +{more}" if more else first.topic
    return (topic, clipped(first.keys, NAME_WIDTH), clipped(first.tags, NAME_WIDTH), body_of(first))


def body_of(row: PreviewRow) -> str:
    """Return the start of a body on one line."""
    return preview(row.body, row.body_bytes, sys_flag=row.sys_flag)


def shape_of(row: PreviewRow) -> HeldMessageShape:
    """Convert a message to its JSON shape."""
    return HeldMessageShape.of(row, keys=list(split_keys(row.keys)), body_preview=body_of(row))


def message_line(row: PreviewRow) -> tuple[Any, ...]:
    """Return the table cells of a message."""
    names = (clipped(row.keys, NAME_WIDTH), clipped(row.tags, NAME_WIDTH))
    place = (row.topic, row.queue_id)
    size = human_bytes(row.body_bytes)
    return (*place, *names, body_of(row), size, row.unique_key or row.message_id)


def left_out(held: Sequence[PreviewRow]) -> int:
    """Return how many messages of a transaction its previews leave out."""
    return held[0].message_count - len(held) if held else 0


def sentence(held: Sequence[PreviewRow]) -> list[str]:
    """Describe the first message of a transaction in one sentence."""
    if not held:
        return []
    first = held[0]
    named = [
        f"{what} {clipped(text, NAME_WIDTH)}"
        for what, text in (("key", first.keys), ("tag", first.tags))
        if text
    ]
    said = ", ".join([f"Its message is for topic {first.topic}", *named])
    if first.message_count > 1:
        said = said.replace("Its message is", f"The first of its {first.message_count} messages is")
    return [f"{said}, {first.body_bytes} bytes: {body_of(first)}"]
