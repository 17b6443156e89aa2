"""Which Spark batches have been decided: the memory of the exactly-once sink.

A streaming query numbers its batches upwards, so the highest one per (app, query) says it all and
is kept for ever.  A plain write has a name instead of a number; names are kept while the log that
decided them is.

Spark gives a batch that may have been committed the same query and number again, whatever rows a
repetition finds.  Another query that comes with a known name must bring the same rows.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from escrowmq.transaction.records import BatchDecided


class NamedBatch(msgspec.Struct, array_like=True):
    """A decided batch that has a name."""

    query_id: str
    log_offset: int
    #: What its writer said of the rows; empty if it said nothing.
    content: str = ""


class AppBatches(msgspec.Struct):
    """The decided batches of one app id."""

    highest: dict[str, int] = msgspec.field(default_factory=dict)
    named: dict[str, NamedBatch] = msgspec.field(default_factory=dict)
    #: Queries that decide every number.
    gapless: list[str] = msgspec.field(default_factory=list)


Verdict = Literal["new", "done", "taken"]


class Batches:
    """The decided batches of every app."""

    def __init__(self) -> None:
        self.apps: dict[str, AppBatches] = {}

    def judge(self, app_id: str, query_id: str, batch_id: int | str, content: str = "") -> Verdict:
        """Whether this batch is new, was decided by this query, or belongs to another one."""
        app = self.apps.get(app_id)
        if app is None:
            return "new"
        if isinstance(batch_id, str):
            named = app.named.get(batch_id)
            if named is None:
                return "new"
            is_same = named.query_id == query_id or named.content == content != ""
            return "done" if is_same else "taken"
        if app.highest.get(query_id, -1) >= batch_id:
            return "done"
        # Another query got this far: a deleted checkpoint, or an app id used twice.
        if any(highest >= batch_id for highest in app.highest.values()):
            return "taken"
        return "new"

    def is_after_gap(self, app_id: str, query_id: str, batch_id: int | str) -> bool:
        """Whether decisions before this batch are lost: its query decides every number."""
        app = self.apps.get(app_id)
        if app is None or isinstance(batch_id, str) or query_id not in app.gapless:
            return False
        return batch_id > app.highest[query_id] + 1

    def apply(self, record: BatchDecided, log_offset: int) -> None:
        """Remember a decided batch."""
        app = self.apps.setdefault(record.app_id, AppBatches())
        query_id, batch_id = record.query_id, record.batch_id
        if isinstance(batch_id, str):
            app.named[batch_id] = NamedBatch(query_id, log_offset, record.content)
            return
        app.highest[query_id] = max(batch_id, app.highest.get(query_id, -1))
        if record.is_gapless and query_id not in app.gapless:
            app.gapless.append(query_id)

    def forget_below(self, log_offset: int) -> None:
        """Drop the names of batches whose decision is no longer in the log."""
        for app in self.apps.values():
            app.named = {
                name: batch for name, batch in app.named.items() if batch.log_offset >= log_offset
            }
