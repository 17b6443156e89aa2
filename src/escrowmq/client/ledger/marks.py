"""Marks of sweeps: up to which point of which history rows of decided transactions are deleted.

An absent row means that its transaction never committed, unless a sweep has deleted the row. A
sweep deletes only rows of transactions that a broker has decided. So a half message that is
undecided in the history of the sweep has lost no row. After a restore the broker has another
history, in which a half message may be undecided although its row was swept. The mark names the
history of the sweep, and its fork from the broker's history tells which half messages those are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from escrowmq.client.database import ledger_sql
from escrowmq.client.database.connections import DatabaseConnection
from escrowmq.model.errors import RequestRefused
from escrowmq.model.ledger_outcome import MAYBE_SWEPT
from escrowmq.model.lineage import Lineage, Sight, decode_lineage

SWEPT_MEANWHILE = "swept_meanwhile"
"""Reason not to fence: a sweep ran after the broker's history was read."""
NO_LINEAGE = "no_lineage"
"""Reason not to fence: the ledger was swept, and the broker does not report its history."""


class Marks(NamedTuple):
    """The marks that the sweeps of a ledger have left."""

    sights: Sequence[Sight]
    #: Version 1 may have swept without leaving marks.
    is_swept_unmarked: bool

    def limits(self, sight: Sight | None) -> FenceLimits:
        """Return which absent rows may be fenced, for a broker with this history."""
        if sight is None:
            is_swept = bool(self.sights) or self.is_swept_unmarked
            return FenceLimits(0, NO_LINEAGE if is_swept else "")
        swept_below = self._unmarked_below(sight.lineage)
        reason = ""
        for mark in self.sights:
            if mark.store_id != sight.store_id:
                continue
            fork = sight.fork(mark)
            if fork is not None:
                swept_below = max(swept_below, fork.half_offset)
            elif mark.log_end > sight.log_end:
                reason = SWEPT_MEANWHILE
        return FenceLimits(swept_below, reason)

    def _unmarked_below(self, lineage: Lineage) -> int:
        """Return the offset below which half messages may have been swept without a mark.

        Brokers without epochs let SDKs of version 1 sweep, even in a ledger that was created after
        version 1. Brokers with epochs refuse them.
        """
        first = lineage.first_epoch
        if first is not None:
            return first.half_offset
        # The lineage has dropped its first epoch; its oldest remaining one started later.
        return lineage.epochs[0].half_offset if self.is_swept_unmarked else 0


class FenceLimits(NamedTuple):
    """Limits on which absent rows may be fenced."""

    #: Half messages below this offset may have lost their row.
    swept_below: int
    #: Why nothing may be fenced now; empty if fencing is possible.
    reason: str

    def reason_for(self, half_offset: int) -> str:
        """Return why this half message may not be fenced; empty if it may."""
        return self.reason or (MAYBE_SWEPT if half_offset < self.swept_below else "")


def read_marks(connection: DatabaseConnection) -> Marks:
    """Read all marks. Call it inside a transaction."""
    version = read_version(connection)
    sights = [
        Sight(lineage, log_end, half_end)
        for text, log_end, half_end in connection.execute(ledger_sql.READ_MARKS).rows
        if (lineage := decode_lineage(text)) is not None
    ]
    return Marks(sights, version.is_swept_unmarked)


def write_marks(connection: DatabaseConnection, sights: Iterable[Sight]) -> None:
    """Record, in the sweep's own transaction, up to where decisions were confirmed."""
    known = read_marks(connection).sights
    for sight in sights:
        store_id, epoch = sight.store_id, sight.lineage.epoch
        for mark in known:
            is_older = mark.store_id == store_id and mark.lineage.epoch != epoch
            # A history that forks from the older mark's history forks from ours at the same point.
            if is_older and mark.log_end <= sight.log_end and sight.fork(mark) is None:
                older = (store_id, mark.lineage.epoch, str(mark.log_end))
                connection.execute(ledger_sql.DROP_MARK, older)
        position = (str(sight.log_end), str(sight.half_end))
        connection.execute(
            ledger_sql.WRITE_MARK, (store_id, epoch, sight.lineage.encode(), *position)
        )


class LedgerVersion(NamedTuple):
    """The version that the database states for its tables."""

    version: int
    is_swept_unmarked: bool


#: A ledger of version 1 has no version table, and its sweeps left no marks.
VERSION_1 = LedgerVersion(1, is_swept_unmarked=True)


def stated_version(connection: DatabaseConnection) -> LedgerVersion:
    """Read the version of the tables; refuse one that is newer than this program knows."""
    if not connection.execute(connection.dialect.has_version_table).rows:
        return VERSION_1
    rows = connection.execute(ledger_sql.READ_VERSION).rows
    if not rows:
        # A migration tool created the table, and stopped before inserting its row.
        return VERSION_1
    ((version, is_swept_unmarked),) = rows
    if version > ledger_sql.VERSION:
        raise RequestRefused(
            "ledger_version_unknown",
            "a newer EscrowMQ made this ledger: update this program",
            version=version,
            known=ledger_sql.VERSION,
        )
    return LedgerVersion(version, bool(is_swept_unmarked))


def read_ledger(connection: DatabaseConnection) -> tuple[str, bool]:
    """Read the ledger's UUID, and whether the database is a standby. Call it in a transaction."""
    rows = connection.execute(connection.dialect.probe).rows
    if len(rows) != 1:
        raise RequestRefused("ledger_missing", "its UUID is gone: SqlLedger(…).create()")
    uuid, _, is_standby = rows[0]
    return str(uuid), bool(is_standby)


def read_version(connection: DatabaseConnection) -> LedgerVersion:
    """Read the version of the tables; refuse any but the one that this program writes."""
    found = stated_version(connection)
    if found.version < ledger_sql.VERSION:
        raise RequestRefused(
            "ledger_outdated",
            "run `escrowmq ledger migrate`, or SqlLedger(…).migrate()",
            version=found.version,
            needed=ledger_sql.VERSION,
        )
    return found
