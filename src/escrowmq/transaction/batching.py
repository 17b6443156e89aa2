"""Deciding Spark batches: all attempts of a batch at once, and every batch once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.transaction.answers import refuse
from escrowmq.transaction.commands import BatchReply, Carry, DecideBatch, Decision, End
from escrowmq.transaction.copying import is_stale
from escrowmq.transaction.giving import give_ranges
from escrowmq.transaction.records import BatchDecided, Record
from escrowmq.transaction.settling import end
from escrowmq.transaction.states import Resolution, State

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions


def decide_batch(core: Transactions, command: DecideBatch, now_ms: int) -> Decision:
    """Commit all attempts of a batch, once; what a finished batch sends again is rolled back."""
    judged = core.batches.judge(command.app_id, command.query_id, command.batch_id)
    if judged == "taken":
        return refuse(
            "batch_decided_by_another_query",
            "give this query an app id of its own, or bring its checkpoint back",
            app_id=command.app_id,
            query_id=command.query_id,
            batch_id=command.batch_id,
        )
    if judged == "done":
        return roll_back_attempts(core, command, now_ms)
    heads: list[int] = []
    ranges: list[tuple[int, int]] = []
    for claim in command.attempts:
        head = core.table.find(claim.transaction_id)
        half = core.table.get(core.head_of(head)) if head is not None else None
        if half is None or half.state is not State.PREPARED or half.half_offset in heads:
            return refuse(
                "attempt_not_prepared",
                "write the batch again, each attempt named once",
                attempt=claim.transaction_id,
                batch_id=command.batch_id,
            )
        held = core.ranges_of(half.half_offset)
        rows = sum(count for _, count in held)
        if (claim.last_number, claim.rows) != (len(held) - 1, rows):
            return refuse(
                "attempt_differs",
                "the attempt does not hold what its writer reported",
                attempt=claim.transaction_id,
                last_number=len(held) - 1,
                rows=rows,
            )
        heads.append(half.half_offset)
        ranges.extend(held)
    given = give_ranges(core, ranges, set())
    record = BatchDecided(
        command.app_id, command.query_id, command.batch_id, command.by, heads, ranges, given
    )
    rows = sum(count for _, count in ranges)
    return Decision(records=(record,), reply=BatchReply(outcome="decided", rows=rows))


def roll_back_attempts(core: Transactions, command: DecideBatch, now_ms: int) -> Decision:
    """The batch is done already: its new attempts must never become visible."""
    records: list[Record] = []
    for claim in command.attempts:
        found = core.table.find(claim.transaction_id)
        half = core.table.get(found) if found is not None else None
        if half is not None and half.state in (State.PREPARED, State.PARKED):
            ending = End(
                half_offset=half.half_offset, resolution=Resolution.ROLLBACK, by=command.by
            )
            records.extend(end(core, ending, now_ms).records)
    return Decision(records=tuple(records), reply=BatchReply(outcome="already_done", rows=0))


def carry_before(core: Transactions, command: DecideBatch, now_ms: int) -> Carry | None:
    """The next request of a batch that is too old to become visible where it is."""
    if core.batches.judge(command.app_id, command.query_id, command.batch_id) != "new":
        return None
    for claim in command.attempts:
        found = core.table.find(claim.transaction_id)
        half = core.table.get(core.head_of(found)) if found is not None else None
        if half is None or half.state is not State.PREPARED:
            continue
        for first, _ in core.ranges_of(half.half_offset):
            row = core.table.get(first)
            if row is not None and is_stale(core, row, now_ms):
                return Carry(first=first)
    return None
