"""Bugs for the victim, to show that the judge finds them. ``LaggingDisk`` is one more."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from escrowmq.broker.write.writer import Writer
from escrowmq.store.retention import retirement
from escrowmq.transaction import commands as c
from escrowmq.transaction.decisions.assigning import give_ranges
from escrowmq.transaction.records import Decided
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.retention.needed import Needed
    from escrowmq.store.store import Store
    from escrowmq.store.table.state_table import StateTable

PLANTS = ("", "reply_before_write", "decide_twice", "forget_the_needed")


class DoubleWriter(Writer):
    """Commits every seventh transaction twice."""

    _committed = 0

    async def submit(self, command: c.Command) -> c.Decision:
        """Execute the command; execute some commits twice."""
        decision = await super().submit(command)
        for record in decision.records:
            if isinstance(record, Decided) and record.state == State.COMMITTED:
                self._committed += 1
                if self._committed % 7 == 0:
                    await self.alone(partial(decide_again, record))
        return decision


def decide_again(record: Decided, store: Store) -> None:
    """Show the messages of a committed transaction a second time."""
    given = give_ranges(store.core, record.ranges, {row for row, _ in record.waiting})
    again = Decided(record.head, record.state, record.by, record.ranges, given, record.waiting)
    store._record(c.Decision(records=(again,)), store.last_at_ms)
    store.sync()


def forget_the_needed(store: Store) -> None:
    """Let retention delete segments although half messages in them are needed."""

    def nothing(table: StateTable, log_offset: int) -> Iterator[Needed]:
        del table, log_offset
        return iter(())

    del store
    setattr(retirement, "needed_below", nothing)  # noqa: B010 - it is not exported
