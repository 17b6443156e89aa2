"""Filters messages that became visible in two histories of a broker: the lake keeps them once.

A half message that was undecided where a restored broker's history forks can be committed in both
histories. It is below the fork in the log, which holds for few other new messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import DATE, MESSAGES

#: The columns that tell a message from another one at the same position in another history.
_IDENTITY = ("broker", "topic", "log_offset", "stored_at_ms", "unique_key")


def without_known(batch: pa.RecordBatch, forks: Mapping[str, int], lake: Lake) -> pa.RecordBatch:
    """The rows that the table of messages does not have from another history. Runs in a task."""
    is_suspect = pa.repeat(pa.scalar(value=False), batch.num_rows)
    for broker, log_offset in forks.items():
        is_below = pc.less(batch["log_offset"], log_offset)
        is_suspect = pc.or_(is_suspect, pc.and_(pc.equal(batch["broker"], broker), is_below))
    suspects = batch.filter(is_suspect)
    if not suspects.num_rows:
        return batch
    known = _known(suspects, lake)
    is_new = [
        not suspect or identity not in known
        for suspect, identity in zip(is_suspect.to_pylist(), _identities(batch), strict=True)
    ]
    return batch.filter(pa.array(is_new, pa.bool_()))


def _known(suspects: pa.RecordBatch, lake: Lake) -> set[tuple[object, ...]]:
    # No message was visible before it was stored.
    first_ms = pc.min(suspects["stored_at_ms"]).as_py()
    first_day = datetime.fromtimestamp(first_ms / 1_000, UTC).date()
    wanted = (
        (pc.field(DATE) >= first_day)
        & pc.field("topic").isin(pc.unique(suspects["topic"]))
        & pc.field("log_offset").isin(suspects["log_offset"])
    )
    found = (
        lake.open(MESSAGES).to_pyarrow_dataset().to_table(columns=list(_IDENTITY), filter=wanted)
    )
    return set(_identities(found))


def _identities(rows: pa.RecordBatch | pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in _IDENTITY), strict=True))
