"""Memory of decided Spark batches, which makes the sink exactly-once.

A streaming query numbers its batches upwards, so the highest number per (app, query) is enough. A
plain write has a name instead of a number; a name is kept while the log has its decision.

If a batch may have been committed, Spark repeats it with the same query and number, whatever rows
the repetition finds. Another query that comes with a known name must bring the same rows.

A query that decides nothing for long expires. Its app keeps the highest number of all expired
queries: a batch above that number was never decided and is new; a batch up to it may have been
decided and is refused. When an app has no queries and no names left, only ``ExpiredQueries``
remembers it, in fixed space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from escrowmq.transaction.memory.expired_names import ExpiredNames, ExpiredNumbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from escrowmq.transaction.records import BatchDecided


class NamedBatch(msgspec.Struct, array_like=True):
    """A decided batch that has a name."""

    query_id: str
    log_offset: int
    #: The writer's fingerprint of the rows; empty if it gave none.
    content: str = ""


class AppBatches(msgspec.Struct):
    """The decided batches of one app id."""

    highest: dict[str, int] = msgspec.field(default_factory=dict)
    named: dict[str, NamedBatch] = msgspec.field(default_factory=dict)
    #: Queries that decide every number, including those of empty batches.
    gapless: list[str] = msgspec.field(default_factory=list)
    #: By query: store time of its last decision.
    decided_at_ms: dict[str, int] = msgspec.field(default_factory=dict)
    #: The highest number of all expired queries; -1 if none has expired.
    expired_highest: int = -1

    def copy(self) -> AppBatches:
        """Return a copy for a checkpoint, which is written while this object changes."""
        return AppBatches(
            dict(self.highest),
            dict(self.named),
            list(self.gapless),
            dict(self.decided_at_ms),
            self.expired_highest,
        )


class SavedExpiredQueries(msgspec.Struct, frozen=True):
    """Checkpoint of ``ExpiredQueries``."""

    queries: bytes = b""
    apps: bytes = b""
    highest: bytes = b""


class ExpiredQueries:
    """Fixed-size memory of expired queries, and of the numbers of apps without other queries."""

    def __init__(self) -> None:
        #: Names of app and query.
        self.queries = ExpiredNames()
        self._apps = ExpiredNames()
        self._highest = ExpiredNumbers()

    def add_app(self, app_id: str, highest: int) -> None:
        """Remember an app whose queries have all expired, and the highest number they reached."""
        self._apps.add(app_id)
        self._highest.note(app_id, highest)

    def highest_of(self, app_id: str) -> int:
        """Upper bound of the numbers that an expired app decided; -1 for most other apps."""
        return self._highest.highest(app_id) if self._apps.may_have(app_id) else -1

    def saved(self) -> SavedExpiredQueries:
        """Return the content for a checkpoint."""
        return SavedExpiredQueries(self.queries.saved(), self._apps.saved(), self._highest.saved())

    def load(self, saved: SavedExpiredQueries) -> None:
        """Load the content of a checkpoint."""
        self.queries.load(saved.queries)
        self._apps.load(saved.apps)
        self._highest.load(saved.highest)


Verdict = Literal["new", "done", "taken", "expired"]


class DecidedBatches:
    """The decided batches of every app."""

    def __init__(self) -> None:
        self.apps: dict[str, AppBatches] = {}
        self.expired = ExpiredQueries()

    def knows(self, app_id: str) -> bool:
        """Whether the app is known to have decided a batch."""
        return app_id in self.apps or self.expired.highest_of(app_id) >= 0

    def judge(self, app_id: str, query_id: str, batch_id: int | str, content: str = "") -> Verdict:
        """Tell whether this batch is new, done already, or taken by another query.

        ``expired`` means that its query expired and may have decided it.
        """
        if isinstance(batch_id, int):
            return self._judge_number(app_id, query_id, batch_id)
        app = self.apps.get(app_id)
        named = None if app is None else app.named.get(batch_id)
        if named is None:
            return "new"
        is_same = named.query_id == query_id or named.content == content != ""
        return "done" if is_same else "taken"

    def _judge_number(self, app_id: str, query_id: str, batch_id: int) -> Verdict:
        app = self.apps.get(app_id)
        if app is None:
            app = AppBatches(expired_highest=self.expired.highest_of(app_id))
        if app.highest.get(query_id, -1) >= batch_id:
            return "done"
        if app.expired_highest >= batch_id:
            return "expired" if self.expired.queries.may_have(app_id, query_id) else "taken"
        # Another query reached this number: Spark's checkpoint was deleted, or two queries use
        # the same app id.
        return "taken" if max(app.highest.values(), default=-1) >= batch_id else "new"

    def is_after_gap(self, app_id: str, query_id: str, batch_id: int | str) -> bool:
        """Whether decisions before this batch were lost: a gapless query skips no number."""
        app = self.apps.get(app_id)
        if app is None or isinstance(batch_id, str) or query_id not in app.gapless:
            return False
        return batch_id > app.highest[query_id] + 1

    def unused(self, app_ids: Iterable[str], since_ms: int) -> Iterator[tuple[str, str]]:
        """Yield (app, query) for each query of these apps that is unused since ``since_ms``."""
        for app_id in app_ids:
            for query_id in self.apps[app_id].highest if app_id in self.apps else ():
                if self.is_unused(app_id, query_id, since_ms):
                    yield app_id, query_id

    def is_unused(self, app_id: str, query_id: str, since_ms: int) -> bool:
        """Whether a known query decided nothing since ``since_ms``."""
        app = self.apps.get(app_id)
        return app is not None and app.decided_at_ms.get(query_id, since_ms) < since_ms

    def apply(self, record: BatchDecided, log_offset: int, at_ms: int = 0) -> None:
        """Remember a decided batch."""
        app = self.apps.get(record.app_id)
        if app is None:
            app = AppBatches(expired_highest=self.expired.highest_of(record.app_id))
            self.apps[record.app_id] = app
        query_id, batch_id = record.query_id, record.batch_id
        if isinstance(batch_id, str):
            app.named[batch_id] = NamedBatch(query_id, log_offset, record.content)
            return
        app.highest[query_id] = max(batch_id, app.highest.get(query_id, -1))
        app.decided_at_ms[query_id] = max(at_ms, app.decided_at_ms.get(query_id, 0))
        if record.is_gapless and query_id not in app.gapless:
            app.gapless.append(query_id)

    def expire(self, queries: Iterable[tuple[str, str]]) -> None:
        """Expire queries; of all expired queries of an app, keep only the highest batch number."""
        for app_id, query_id in queries:
            self.expired.queries.add(app_id, query_id)
            app = self.apps.get(app_id)
            if app is None or query_id not in app.highest:
                continue
            app.expired_highest = max(app.expired_highest, app.highest.pop(query_id))
            del app.decided_at_ms[query_id]
            if query_id in app.gapless:
                app.gapless.remove(query_id)
            self._note_past(app_id, app)

    def _note_past(self, app_id: str, app: AppBatches) -> None:
        if app.highest or app.named:
            return
        del self.apps[app_id]
        if app.expired_highest >= 0:
            self.expired.add_app(app_id, app.expired_highest)

    def forget_below(self, log_offset: int) -> None:
        """Drop the names of batches whose decision is no longer in the log."""
        for app_id, app in list(self.apps.items()):
            if app.named:
                app.named = {
                    name: batch
                    for name, batch in app.named.items()
                    if batch.log_offset >= log_offset
                }
                self._note_past(app_id, app)

    def saved(self) -> dict[str, AppBatches]:
        """Return a copy of all apps for a checkpoint."""
        return {app_id: app.copy() for app_id, app in self.apps.items()}

    def load(self, apps: dict[str, AppBatches], expired: SavedExpiredQueries, at_ms: int) -> None:
        """Load a checkpoint; a query without a time, from an older release, counts as used now."""
        self.apps = {app_id: app.copy() for app_id, app in apps.items()}
        self.expired.load(expired)
        for app in self.apps.values():
            for query_id in app.highest:
                app.decided_at_ms.setdefault(query_id, at_ms)
