"""State store in a database: one row for each undecided transaction, as RocketMQ 3.1.5 had it.

The row goes away with the decision. There is no redo log: each batch is one transaction of the
database, which also moves the position, and only under the epoch of the broker that claimed the
store id. After every new connection the position is read again, because a database that failed over
may have lost batches.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from escrowmq.model.errors import StoreUnusable, Unavailable
from escrowmq.model.lineage import new_lineage
from escrowmq.store.disk.rows import Rows
from escrowmq.store.sql.database import StateDatabase
from escrowmq.store.sql.schema import NAME_CHARS_MAX
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import (
    HELD_ROWS,
    FoundStates,
    StatePosition,
    StatesLostTrack,
    are_held,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Row

    from escrowmq.transaction.records import NamedOrigin
    from escrowmq.transaction.state_store import StateBatch, StateClaim, StatePart, WantedStates

PART_ROWS = 16_384
#: Half offsets that one statement names.
NAMED_MAX = 1_000
LEASE_S = 15.0
"""A broker that has written within this time still claims its store id."""
NUL_SHOWN = "\u2400"
"""Stands for a NUL in a name, of the same length in characters."""
_CHECKED = ("state", "checks_sent", "next_check_at_ms")


class SqlStates:
    """The rows of one store."""

    name = "sql"
    part_rows = PART_ROWS

    def __init__(self, url: str, store_id: str) -> None:
        self._database = StateDatabase(url)
        self._store_id = store_id
        self._lineage = new_lineage(store_id)
        #: Changes that are known to be applied, as the position counts them.
        self._batches = 0
        #: The change that was sent last, while its answer is missing.
        self._unanswered: StateBatch | StatePart | None = None
        #: The change whose answer was lost and that the database has.
        self._found: StateBatch | StatePart | None = None
        #: Whether this broker has had the claim.
        self._was_open = False
        #: Epoch and last write of another start that has the claim, when ``open`` last met one.
        self._met: tuple[str, float] | None = None

    # The port.

    def open(self, claim: StateClaim) -> StatePosition | None:
        """Claim the store id; refuse if another broker that still writes has it."""
        import sqlalchemy as sa

        self._database.connect()
        position = self._database.tables.position
        mine = {"epoch": claim.lineage.epoch, "place": claim.place, "beat_at": self._now()}
        with self._database.transaction() as connection:
            found = self._position(connection)
            if found is None:
                blank = {"log_offset": 0, "rows_end": 0, "batches": 0}
                new = sa.insert(position).values(store_id=self._store_id, **blank, **mine)
                connection.execute(new)
            else:
                self._refuse_second(found, claim)
                taken = connection.execute(
                    sa.update(position)
                    .where(position.c.store_id == self._store_id, position.c.epoch == found.epoch)
                    .values(mine)
                )
                if taken.rowcount != 1:
                    raise Unavailable("state_store_away", "another broker claims the store id now")
        self._lineage = claim.lineage
        self._batches = 0 if found is None else found.batches
        self._unanswered = self._found = None
        self._was_open, self._met = True, None
        if found is None or not claim.lineage.holds(found.epoch, found.log_offset):
            return None
        return StatePosition(found.epoch, found.log_offset, found.rows_end)

    def follow(self, batch: StateBatch) -> int:
        """Apply a batch as one transaction of the database."""
        import sqlalchemy as sa

        self._connect_again()
        if self._found is batch:
            # It was applied, and the connection broke before the answer.
            self._found = None
            return 0
        table = self._database.tables.transactions
        new = batch.appended[are_held(batch.appended)]
        decided = batch.decided["half_offset"][batch.decided["is_head"]].tolist()
        checked = batch.checked[are_held(batch.checked)]
        with self._change(batch) as connection:
            self._move(connection, batch.position)
            if len(new):
                connection.execute(sa.insert(table), self._values(new, batch.origins))
            unheld = len(decided) - self._delete(connection, decided)
            if len(checked):
                changed = (
                    sa.update(table)
                    .where(table.c.store_id == self._store_id)
                    .where(table.c.half_offset == sa.bindparam("row"))
                    .values({name: sa.bindparam(f"new_{name}") for name in _CHECKED})
                )
                values = self._values(checked, batch.origins)
                connection.execute(changed, list(map(_changes, values)))
        return unheld

    def replace(self, part: StatePart) -> int:
        """Make the rows of a range equal to those of the core."""
        import sqlalchemy as sa

        self._connect_again()
        wanted = {
            values["half_offset"]: values
            for values in self._values(part.rows[are_held(part.rows)], part.origins)
        }
        held = {row.half_offset: row for row in self._rows(part.first, part.end)}
        same = {at for at, row in held.items() if at in wanted and self._is_same(row, wanted[at])}
        extra, missing = held.keys() - same, wanted.keys() - same
        if not (extra or missing):
            return 0
        with self._change(part) as connection:
            self._move(connection)
            self._delete(connection, sorted(extra))
            if missing:
                rows = [wanted[at] for at in sorted(missing)]
                connection.execute(sa.insert(self._database.tables.transactions), rows)
        return len(extra | missing)

    def parts_held(self) -> list[int]:
        """The starts of the ranges that have rows."""
        import sqlalchemy as sa

        self._connect_again()
        rows = self._database.tables.transactions.c
        part = rows.half_offset - rows.half_offset % PART_ROWS
        with self._database.transaction() as connection:
            asked = sa.select(part).where(rows.store_id == self._store_id).distinct()
            return sorted(connection.execute(asked).scalars())

    def scan(self, wanted: WantedStates) -> FoundStates:
        """Find due rows by the indices of their times, and others by the primary key."""
        import sqlalchemy as sa

        self._connect_again()
        rows = self._database.tables.transactions.c
        half_offset: Any = rows.half_offset
        if wanted.check_at_ms is not None:
            # An expression, so that no planner reads all rows of the range by the primary key.
            half_offset = rows.half_offset + 0
        in_range = (
            sa.select(rows.half_offset)
            .where(rows.store_id == self._store_id)
            .where(half_offset >= wanted.first, half_offset < wanted.end)
            .where(rows.state.in_([int(state) for state in wanted.states]))
        )
        asked: Any = in_range
        if wanted.check_at_ms is not None:
            # Each of the two queries uses its own index; one query with OR would use neither.
            asked = sa.union(
                in_range.where(rows.next_check_at_ms <= wanted.check_at_ms),
                in_range.where(rows.stored_at_ms <= wanted.stored_at_ms),
            )
        with self._database.transaction() as connection:
            limited = asked.order_by("half_offset").limit(wanted.limit + 1)
            found = np.array(connection.execute(limited).scalars().all(), dtype=np.int64)
        next_first = int(found[wanted.limit]) if len(found) > wanted.limit else None
        return FoundStates(found[: wanted.limit], next_first)

    def low_water(self) -> int:
        """The half offset of the lowest row; the end if there is none."""
        import sqlalchemy as sa

        self._connect_again()
        tables = self._database.tables
        rows = tables.transactions.c
        with self._database.transaction() as connection:
            asked = sa.select(sa.func.min(rows.half_offset)).where(rows.store_id == self._store_id)
            lowest = connection.execute(asked).scalar()
            found = self._position(connection)
        if lowest is not None:
            return int(lowest)
        return 0 if found is None else int(found.rows_end)

    def snapshot(self, first: int, end: int) -> Rows:
        """Return the rows of a range."""
        self._connect_again()
        rows = self._rows(first, end)
        held = np.zeros(len(rows), dtype=HELD_ROWS)
        for name in ("half_offset", "log_offset", "state", "checks_sent"):
            held[name] = [getattr(row, name) for row in rows]
        times = [row.next_check_at_ms for row in rows]
        held["next_at_ms"] = [NEVER if at_ms is None else at_ms for at_ms in times]
        return held

    def _rows(self, first: int, end: int) -> Sequence[Row[Any]]:
        """Return the rows of a range as the database has them, sorted."""
        import sqlalchemy as sa

        table = self._database.tables.transactions
        asked = (
            sa.select(table)
            .where(table.c.store_id == self._store_id)
            .where(table.c.half_offset >= first, table.c.half_offset < end)
            .order_by(table.c.half_offset)
        )
        with self._database.transaction() as connection:
            return connection.execute(asked).all()

    def _is_same(self, row: Row[Any], wanted: dict[str, Any]) -> bool:
        """Whether a row is as the core has it; it may have been written under an earlier epoch."""
        found = row._asdict()
        is_ours = self._lineage.holds(found["epoch"], found["log_offset"])
        return is_ours and found | {"epoch": wanted["epoch"]} == wanted

    def close(self, position: StatePosition | None) -> None:
        """Release the claim if the broker stops cleanly, and end the connection."""
        try:
            if position is not None and self._database.is_connected:
                with self._database.transaction() as connection:
                    self._move(connection, position, beat_at=None)
        finally:
            self._database.close()

    def interrupt(self) -> None:
        """End the call under way, from another thread: it raises Unavailable."""
        self._database.interrupt()

    def remake_old_tables(self) -> None:
        """Replace tables of an older version by empty ones."""
        self._database.remake_old()

    # The position.

    def _now(self) -> Any:  # noqa: ANN401 - an expression of SQLAlchemy
        """Return the database's time in seconds."""
        import sqlalchemy as sa

        if self._database.is_sqlite:
            return (sa.func.julianday("now") - 2_440_587.5) * 86_400.0
        return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)

    def _position(self, connection: Connection) -> Row[Any] | None:
        import sqlalchemy as sa

        table = self._database.tables.position
        asked = sa.select(table, self._now().label("now")).where(table.c.store_id == self._store_id)
        return connection.execute(asked).one_or_none()

    def _refuse_second(self, found: Row[Any], claim: StateClaim) -> None:
        """Raise if another broker that still writes has the claim."""
        is_writing = found.beat_at is not None and found.now - found.beat_at < LEASE_S
        if found.epoch == claim.lineage.epoch or not is_writing:
            return
        if not claim.place or found.place != claim.place:
            raise self._claimed(found.place)
        starts = {one.id for one in claim.lineage.epochs}
        if not self._was_open or found.epoch in starts:
            # An earlier start of this broker has the claim, and that start is over.
            return
        # Either the database went back to a start that the log lost, or a copy of the machine runs.
        met, self._met = self._met, (found.epoch, found.beat_at)
        if met is not None and met != self._met:
            raise self._claimed(found.place)
        raise Unavailable(
            "state_store_away", "another start in this place has the claim", epoch=found.epoch
        )

    def _claimed(self, place: str) -> StoreUnusable:
        return StoreUnusable(
            "state_store_claimed",
            "another broker with this store id uses the database: stop one of the two",
            store_id=self._store_id,
            place=place,
        )

    @contextmanager
    def _change(self, change: StateBatch | StatePart) -> Iterator[Connection]:
        """Run the block as one transaction; the change is unanswered until the commit."""
        self._unanswered, self._found = change, None
        with self._database.transaction() as connection:
            yield connection
        self._batches += 1
        self._unanswered = None

    def _move(
        self, connection: Connection, to: StatePosition | None = None, **more: object
    ) -> None:
        """Count a change, and move the position; raise if it is not where this broker left it."""
        import sqlalchemy as sa

        table = self._database.tables.position
        values: dict[str, Any] = {"batches": self._batches + 1, "beat_at": self._now()}
        if to is not None:
            values |= {"log_offset": to.log_offset, "rows_end": to.rows_end}
        moved = connection.execute(
            sa.update(table)
            .where(table.c.store_id == self._store_id, table.c.epoch == self._lineage.epoch)
            .where(table.c.batches == self._batches)
            .values(values | more)
        )
        if moved.rowcount != 1:
            # The database went back, or another broker has the claim: ``open`` finds out which.
            raise StatesLostTrack

    def _connect_again(self) -> None:
        """Connect if the connection broke, and look how far the database is."""
        if self._database.is_connected:
            return
        self._database.connect()
        with self._database.transaction() as connection:
            found = self._position(connection)
            if found is None or found.epoch != self._lineage.epoch:
                raise StatesLostTrack
            is_answer_lost = self._unanswered is not None
            if not 0 <= found.batches - self._batches <= is_answer_lost:
                raise StatesLostTrack
        if found.batches > self._batches:
            self._found = self._unanswered
        self._batches, self._unanswered = found.batches, None

    # Rows.

    def _values(self, rows: Rows, origins: Mapping[int, NamedOrigin]) -> list[dict[str, Any]]:
        columns = {name: rows[name].tolist() for name in rows.dtype.names or ()}
        return [
            {
                "store_id": self._store_id,
                "half_offset": columns["half_offset"][at],
                "epoch": self._lineage.epoch,
                "log_offset": columns["log_offset"][at],
                "size": columns["size"][at],
                "stored_at_ms": columns["stored_at_ms"][at],
                "producer_group": _storable(origins[columns["origin"][at]].group),
                "ledger": _storable(origins[columns["origin"][at]].ledger),
                "state": columns["state"][at],
                "checks_sent": columns["checks_sent"][at],
                "next_check_at_ms": (
                    None if columns["next_at_ms"][at] == NEVER else columns["next_at_ms"][at]
                ),
            }
            for at in range(len(rows))
        ]

    def _delete(self, connection: Connection, half_offsets: Sequence[int]) -> int:
        """Delete these rows, and return how many there were."""
        import sqlalchemy as sa

        rows = self._database.tables.transactions
        deleted = 0
        for at in range(0, len(half_offsets), NAMED_MAX):
            named = half_offsets[at : at + NAMED_MAX]
            done = connection.execute(
                sa.delete(rows).where(
                    rows.c.store_id == self._store_id, rows.c.half_offset.in_(named)
                )
            )
            deleted += done.rowcount
        return deleted


def _storable(name: str) -> str:
    """Return a name as a column can hold it: PostgreSQL has no NUL, and a log may have one."""
    return name.replace("\0", NUL_SHOWN)[:NAME_CHARS_MAX]


def _changes(values: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that change one row."""
    return {"row": values["half_offset"]} | {f"new_{name}": values[name] for name in _CHECKED}
