"""Which Spark batches have been decided: the memory of the exactly-once sink.

A streaming query numbers its batches upwards, so the highest one per (app, query) says it all and
is kept for ever.  A plain write has a name instead of a number; names are kept while the log that
decided them is.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class NamedBatch(msgspec.Struct, array_like=True):
    """A decided batch that has a name."""

    query_id: str
    log_offset: int


class AppBatches(msgspec.Struct):
    """The decided batches of one app id."""

    highest: dict[str, int] = msgspec.field(default_factory=dict)
    named: dict[str, NamedBatch] = msgspec.field(default_factory=dict)


Verdict = Literal["new", "done", "taken"]


class Batches:
    """The decided batches of every app."""

    def __init__(self) -> None:
        self.apps: dict[str, AppBatches] = {}

    def judge(self, app_id: str, query_id: str, batch_id: int | str) -> Verdict:
        """Whether this batch is new, was decided by this query, or belongs to another one."""
        app = self.apps.get(app_id)
        if app is None:
            return "new"
        if isinstance(batch_id, str):
            named = app.named.get(batch_id)
            if named is None:
                return "new"
            return "done" if named.query_id == query_id else "taken"
        if app.highest.get(query_id, -1) >= batch_id:
            return "done"
        # Another query got this far: a deleted checkpoint, or an app id used twice.
        if any(highest >= batch_id for highest in app.highest.values()):
            return "taken"
        return "new"

    def apply(self, app_id: str, query_id: str, batch_id: int | str, log_offset: int) -> None:
        """Remember a decided batch."""
        app = self.apps.setdefault(app_id, AppBatches())
        if isinstance(batch_id, str):
            app.named[batch_id] = NamedBatch(query_id, log_offset)
        else:
            app.highest[query_id] = max(batch_id, app.highest.get(query_id, -1))

    def forget_below(self, log_offset: int) -> None:
        """Drop the names of batches whose decision is no longer in the log."""
        for app in self.apps.values():
            app.named = {
                name: batch for name, batch in app.named.items() if batch.log_offset >= log_offset
            }
