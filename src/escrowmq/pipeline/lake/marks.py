"""Marks in a lake table: up to where it is archived, and since which day it is kept.

Marks are app transactions of the Delta table. The archive writes its position in the commit that
adds the rows, so both change or neither does. Compaction, cleanup of Delta's log and deletion of
rows do not change marks. An audit compares the rows with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake import DeltaTable, Transaction

from escrowmq.pipeline.lake.delta import Entitlement, Lake
from escrowmq.pipeline.lake.tables import DATE, DAY_MS, LakeTable

END = "escrowmq/archive/end"
"""Prefix for the first offset of a queue, or of a broker's log, that is not archived.

The name itself marks a table whose positions are recorded. An older program did not record them.
"""

FORK = "escrowmq/archive/fork"
"""Prefix for the highest log offset at which a restored broker's history forked."""

KEPT_FROM = "escrowmq/lake/kept_from"
"""The first day that retention has not deleted, in days since 1970."""

_EPOCH = date(1970, 1, 1)


def once(name: str, version: int) -> Entitlement:
    """Entitle a commit that sets this mark, unless the table has it, or a higher one, already."""

    def ask(delta: DeltaTable) -> Sequence[Transaction] | None:
        known = delta.transaction_version(name)
        return None if known is not None and known >= version else [Transaction(name, version)]

    return ask


def ends_of(position: Mapping[str, Any], name: str = END) -> Iterator[tuple[str, int]]:
    """The marks of a stream's position, which is nested as in the checkpoint."""
    for key, end in position.items():
        below = f"{name}/{key}"
        if isinstance(end, Mapping):
            yield from ends_of(end, below)
        else:
            yield below, end


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Transaction]:
    """The marks that a batch between these positions changes."""
    old = dict(ends_of(before))
    return [Transaction(name, end) for name, end in ends_of(after) if old.get(name) != end]


def with_marks(entitled: Entitlement, marks: Sequence[Transaction]) -> Entitlement:
    """Add marks to the commit of an entitlement."""

    def ask(delta: DeltaTable) -> Sequence[Transaction] | None:
        given = entitled(delta)
        return None if given is None else [*given, *marks]

    return ask


def forks_of(delta: DeltaTable, brokers: Iterable[str], new: Mapping[str, int]) -> dict[str, int]:
    """The log offsets below which a message may also be in another history, by broker."""
    forks = {
        broker: max(delta.transaction_version(f"{FORK}/{broker}") or 0, new.get(broker, 0))
        for broker in brokers
    }
    return {broker: log_offset for broker, log_offset in forks.items() if log_offset}


def fork_marks(forks: Mapping[str, int]) -> list[Transaction]:
    """The marks of these forks."""
    return [Transaction(f"{FORK}/{broker}", log_offset) for broker, log_offset in forks.items()]


def begin_marks(lake: Lake, table: LakeTable, position: Mapping[str, Any]) -> None:
    """Mark a table without marks: it is new, or an older program archived it up to here."""

    def ask(delta: DeltaTable) -> Sequence[Transaction] | None:
        if is_marked(delta):
            return None
        marks = [Transaction(END, 1), *moved({}, position)]
        first = _first_day(delta)
        return [*marks, Transaction(KEPT_FROM, first)] if first else marks

    lake.commit(table, (), ask)


def mark_kept_from(lake: Lake, table: LakeTable, first_day: date) -> None:
    """Record that retention deletes older rows. Call this before the deletion."""
    lake.commit(table, (), once(KEPT_FROM, (first_day - _EPOCH).days))


def is_marked(delta: DeltaTable) -> bool:
    """Whether the archive records its position in this table."""
    return delta.transaction_version(END) is not None


def marked_end(delta: DeltaTable, *place: object) -> int:
    """The first offset of a queue (broker, topic, id) or of a broker's log that is not archived."""
    return delta.transaction_version("/".join((END, *map(str, place)))) or 0


def kept_from_ms(delta: DeltaTable) -> int:
    """The instant before which retention may have deleted rows."""
    return (delta.transaction_version(KEPT_FROM) or 0) * DAY_MS


def _first_day(delta: DeltaTable) -> int:
    """The first day with rows, or 0. Used because an older program's retention left no mark."""
    actions = pa.table(delta.get_add_actions(flatten=True))
    first = pc.min(actions[f"partition.{DATE}"].cast(pa.date32())).as_py()
    return 0 if first is None else (first - _EPOCH).days
