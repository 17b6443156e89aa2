"""The tables of docs/reference/disk-format.md, read from the code that writes the bytes."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args, get_type_hints

from escrowmq.protocol.message import stored_message
from escrowmq.store.checkpoint import checkpoint
from escrowmq.store.disk import rows
from escrowmq.store.index import key_run
from escrowmq.store.log import (
    frames,
    lone_frames,
)
from escrowmq.store.recovery import format  # noqa: A004 - our module
from escrowmq.transaction import records
from tools.reference.comments import describe

if TYPE_CHECKING:
    import numpy as np
    from msgspec import Struct

_KINDS = {
    "<i8": "integer, 8 bytes",
    "<i4": "integer, 4 bytes",
    "<u4": "unsigned, 4 bytes",
    "<u2": "unsigned, 2 bytes",
    "|u1": "unsigned, 1 byte",
}
#: Meaning of each column.
_COLUMNS = {
    "log_offset": "its identity: where the message was first written",
    "location": "where its bytes are now",
    "stored_at_ms": "when it was stored",
    "next_at_ms": "undecided: next check; committed: when it becomes visible; else 2^63 - 1",
    "op_offset": "the frame that decided it, or -1",
    "size": "bytes of the message; 0 if there is none: lost, or deleted before the chunk began",
    "crc": "checksum of the message, as in its record",
    "origin": "number of producer group and ledger; 2^32 - 1 for an ordinary message",
    "queue": "number of the queue",
    "tags": "hash code of the tags",
    "id_hash": "CRC-32 of the transaction id",
    "part": "first row of a request: 0x8000 + rows; others: distance to the first",
    "state": "code of the state",
    "checks_sent": "back-checks sent",
    "check": "check word",
    "half_offset": "the row's number",
    "visible_at_ms": "when consumers could first see it",
}
_ENTRY = {
    "log_offset": "where the message is; for an empty place, the frame that lost it",
    "size": "bytes of the message; 0 for an empty place, which a pull passes over",
}


def blocks() -> dict[str, str]:
    """Return each generated block of the page."""
    return {
        "frame": _drawing(frames.__doc__),
        "message": _drawing(stored_message.__doc__),
        "lone records": _drawing(lone_frames.__doc__),
        "records": records_table(),
        "parts": parts_table(),
        "state rows": columns_table(rows.STATE_ROW, {}),
        "queue entries": columns_table(rows.QUEUE_ENTRY, _ENTRY),
        "key runs": _drawing(key_run.__doc__),
        "checkpoint": fields_table(checkpoint.Checkpoint),
        "format": fields_table(format.Format),
    }


def records_table() -> str:
    """Tabulate every record: its tag, its fields in order, and what it says."""
    kinds = sorted(get_args(records.Record), key=lambda kind: kind.__struct_config__.tag)
    lines = ["| Tag | Record | Fields | Says |", "|---|---|---|---|"]
    lines += [f"| {kind.__struct_config__.tag} {_row(kind)}" for kind in kinds]
    return "\n".join(lines)


def parts_table() -> str:
    """Tabulate the parts that records contain."""
    lines = ["| Part | Fields | Says |", "|---|---|---|"]
    lines += [_row(kind) for kind in (records.Placed, records.Span, records.CarriedRow)]
    return "\n".join(lines)


def _row(kind: type[Struct]) -> str:
    names = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
    says = " ".join((inspect.getdoc(kind) or "").split()).replace("``", "`")
    return f"| `{kind.__name__}` | {names} | {says} |"


def fields_table(kind: type[Struct]) -> str:
    """Tabulate the fields of a struct in order."""
    comments = dict(describe(kind))
    types = get_type_hints(kind)
    lines = ["| Field | Type | Meaning |", "|---|---|---|"]
    for name in kind.__struct_fields__:
        meaning = comments.get(name, "").replace("``", "`")
        lines.append(f"| `{name}` | {_type(types[name])} | {meaning} |")
    return "\n".join(lines)


def _type(kind: object) -> str:
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)
    return f"`{text}`".replace("|", "\\|")


def columns_table(row: np.dtype[np.void], special: dict[str, str]) -> str:
    """Tabulate a fixed-size record: position, column, type, meaning."""
    lines = ["| At | Column | Type | Meaning |", "|---|---|---|---|"]
    for name in row.names or ():
        assert row.fields is not None
        kind, at = row.fields[name][:2]
        meaning = special.get(name) or _COLUMNS[name]
        lines.append(f"| {at} | `{name}` | {_KINDS[kind.str]} | {meaning} |")
    return "\n".join(lines)


def _drawing(doc: str | None) -> str:
    """Return the indented part of a module's docstring."""
    lines: Sequence[str] = (doc or "").splitlines()
    indented = [at for at, line in enumerate(lines) if line.startswith("    ")]
    block = textwrap.dedent("\n".join(lines[indented[0] : indented[-1] + 1]))
    return f"```text\n{block}\n```"
