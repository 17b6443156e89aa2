"""Decisions about Spark batches: all attempts of a batch at once, and every batch once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.transaction.commands import AttemptClaim, BatchReply, DecideBatch, Decision
from escrowmq.transaction.decisions.answers import refuse
from escrowmq.transaction.decisions.assigning import give_ranges, is_deleted, waiting_rows
from escrowmq.transaction.decisions.carrying import stale_requests
from escrowmq.transaction.decisions.deciding import decide_as
from escrowmq.transaction.memory.batches import AppBatches
from escrowmq.transaction.records import BatchDecided, Record
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.memory.batches import Verdict
    from escrowmq.transaction.table import Half


def decide_batch(core: Transactions, command: DecideBatch, now_ms: int) -> Decision:
    """Commit all attempts of a batch, once; roll back attempts of a batch that is done already."""
    batches, app_id, query_id = core.batches, command.app_id, command.query_id
    judged = batches.judge(app_id, query_id, command.batch_id, command.content)
    refused = refuse_batch(core, command, judged)
    if refused is not None:
        return refused
    if judged == "done":
        return roll_back_attempts(core, command, now_ms)
    ranges_by_head: dict[int, list[tuple[int, int]]] = {}
    for claim in command.attempts:
        head = head_of_attempt(core, claim)
        if head is None or head.state is not State.PREPARED or head.half_offset in ranges_by_head:
            return refuse(
                "attempt_not_prepared",
                "write the batch again, each attempt named once",
                attempt=claim.transaction_id,
                batch_id=command.batch_id,
            )
        held = core.ranges_of(head.half_offset)
        rows = sum(count for _, count in held)
        if (claim.last_number, claim.rows) != (len(held) - 1, rows):
            return refuse(
                "attempt_differs",
                "the attempt does not hold what its writer reported",
                attempt=claim.transaction_id,
                last_number=len(held) - 1,
                rows=rows,
            )
        ranges_by_head[head.half_offset] = held
    return commit_attempts(core, command, ranges_by_head, now_ms)


def refuse_batch(core: Transactions, command: DecideBatch, judged: Verdict) -> Decision | None:
    """Refuse a batch that cannot be decided, whatever its attempts hold; None if it can."""
    if judged == "taken":
        return refuse(
            "batch_decided_by_another_query",
            "give this query its own app id, or restore its checkpoint",
            **facts_of(core, command),
        )
    if judged == "expired":
        return refuse(
            "query_expired",
            "the query decided no batch for so long that the broker deleted its progress: check"
            " whether the rows of this batch were stored, then continue with a new app id",
            **name_of(command),
        )
    is_after_gap = core.batches.is_after_gap(command.app_id, command.query_id, command.batch_id)
    if command.is_gapless and is_after_gap:
        return refuse(
            "batches_missing",
            "a restore of the broker removed these batches: check which of their rows it still has,"
            " then continue with a new app id",
            **facts_of(core, command),
        )
    return None


def facts_of(core: Transactions, command: DecideBatch) -> dict[str, object]:
    """Return the facts of a refusal: the batch, and what was decided before it."""
    # An app whose queries have all expired is no longer in ``apps``.
    app = core.batches.apps.get(command.app_id, AppBatches())
    known: dict[str, object] = {"last_decided": app.highest.get(command.query_id, -1)}
    if isinstance(command.batch_id, str):
        named = app.named[command.batch_id]
        known = {"decided_by": named.query_id, "decided": named.content, "now": command.content}
    return {**name_of(command), **known}


def name_of(command: DecideBatch) -> dict[str, object]:
    """Return the facts that name a batch."""
    app_id, query_id, batch_id = command.app_id, command.query_id, command.batch_id
    return {"app_id": app_id, "query_id": query_id, "batch_id": batch_id}


def head_of_attempt(core: Transactions, claim: AttemptClaim) -> Half | None:
    """Return the first half message of an attempt; None if it is unknown."""
    half = core.find(claim.transaction_id)
    return None if half is None else core.head_row(half)


def commit_attempts(
    core: Transactions,
    command: DecideBatch,
    ranges_by_head: dict[int, list[tuple[int, int]]],
    now_ms: int,
) -> Decision:
    """Commit these attempts and remember the batch in one record, all or nothing."""
    ranges = [held for ranges in ranges_by_head.values() for held in ranges]
    if is_deleted(core, ranges):
        return refuse(
            "topic_deleted",
            "a topic of the batch was deleted while it was written: write the batch again",
            **name_of(command),
        )
    waiting = waiting_rows(core, ranges, now_ms)
    waits = {row for row, _ in waiting}
    record = BatchDecided(
        app_id=command.app_id,
        query_id=command.query_id,
        batch_id=command.batch_id,
        heads=list(ranges_by_head),
        ranges=ranges,
        given=give_ranges(core, ranges, waits),
        waiting=waiting,
        by=command.by,
        content=command.content,
        is_gapless=command.is_gapless,
    )
    return Decision(
        records=(record,),
        reply=BatchReply(outcome="decided", rows=sum(count for _, count in ranges)),
        carries=stale_requests(core, ranges, waits, now_ms),
    )


def roll_back_attempts(core: Transactions, command: DecideBatch, now_ms: int) -> Decision:
    """Roll back the new attempts of a batch that is done already."""
    records: dict[int, Record] = {}
    for claim in command.attempts:
        head = head_of_attempt(core, claim)
        if head is not None and head.state in (State.PREPARED, State.PARKED):
            rolled_back = decide_as(core, head, State.ROLLED_BACK, command.by, now_ms)
            records[head.half_offset] = rolled_back.records[0]
    return Decision(
        records=tuple(records.values()), reply=BatchReply(outcome="already_done", rows=0)
    )
