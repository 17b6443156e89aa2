"""Our own questions about transactions: what the pipeline's rules, and people, need to know.

Each is answered between two batches, so no fact leaves before what it tells of is durable.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from escrowmq.broker.own_calls import Call, key_cursor, keys_after, offset_cursor, own_questions
from escrowmq.broker.status import Status, status
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_headers import OwnAnswer, StatusAnswer
from escrowmq.store.identities import transaction_ids
from escrowmq.store.listing import list_heads, message_counts, plan, started_at_ms
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.requests import Handlers
    from escrowmq.protocol.own_headers import (
        ListBatchesHeader,
        ListTransactionsHeader,
        OwnHeader,
        PlanHeader,
    )
    from escrowmq.transaction.batches import AppBatches

IDS_MAX = 2_000
"""Transaction ids that one page reads from the log: each is a read of its own."""

ROWS_PER_RANGE = 10_000
BYTES_PER_RANGE = 64 * 1024 * 1024
"""What a planned range has, about, if nobody says otherwise."""

_FIELDS = set(StatusAnswer.__struct_fields__) - set(OwnAnswer.__struct_fields__)
_OF_STATUS = sorted(_FIELDS & set(Status.__struct_fields__))
_OF_POLICY = sorted(_FIELDS & {field.name for field in fields(CheckPolicy)})
_STATES = {state.label: state for state in State}


class OwnFacts:
    """Handles questions about transactions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """By request code."""
        return own_questions(
            self._broker,
            {
                OwnCode.STATUS: self.status,
                OwnCode.PLAN_RANGES: self.plan,
                OwnCode.LIST_TRANSACTIONS: self.transactions,
                OwnCode.LIST_BATCHES: self.batches,
            },
        )

    def status(self, call: Call[OwnHeader]) -> None:
        """How the broker is."""
        broker, stands = self._broker, status(self._broker)
        table, policy = broker.store.table, broker.store.core.policy
        call.answer(
            **{name: getattr(stands, name) for name in _OF_STATUS},
            **{name: getattr(policy, name) for name in _OF_POLICY},
            broker_version=stands.version,
            checks_sent=broker.checking.asked_count,
            topics=sum(1 for _ in broker.topics.all()),
            queues=len(broker.store.queues),
            half_start=table.start,
            half_end=table.end,
        )

    def plan(self, call: Call[PlanHeader]) -> None:
        """Ranges to be read at the same time."""
        header, store = call.header, self._broker.store
        ranges_max = call.spec.answer_rows_max
        if header.what == "transactions":
            # Neighbours are joined until they are too heavy, so twice as many may come of it.
            weight = header.weight if header.weight > 0 else ROWS_PER_RANGE
            ranges = plan(store, max(weight, 4 * store.table.needed // ranges_max + 1))
        elif header.what == "log":
            start, end = store.log.start, store.settled
            size = header.weight if header.weight > 0 else BYTES_PER_RANGE
            size = max(size, (end - start) // ranges_max + 1)
            ranges = [(at, min(at + size, end), size) for at in range(start, end, size)]
        else:
            raise RequestRefused(
                "plan_unknown", "ask for `transactions` or `log`", what=header.what[:64]
            )
        call.answer_rows(ranges)

    def transactions(self, call: Call[ListTransactionsHeader]) -> None:
        """Transactions by range and states."""
        header, store = call.header, self._broker.store
        end = header.end if header.end >= 0 else NEVER
        page = list_heads(
            store,
            offset_cursor(header.cursor, max(header.start, 0)),
            end,
            _states(header.states),
            limit=call.limit(IDS_MAX) if header.with_ids else call.limit(),
        )
        heads = page.heads
        now_ms = max(self._broker.clock.now_ms(), store.last_at_ms)
        half_offsets = heads["half_offset"].tolist()
        ids: list[str] | list[None] = [None] * len(half_offsets)
        if header.with_ids:
            ids = transaction_ids(store, zip(half_offsets, heads["location"].tolist(), strict=True))
        numbers = heads["origin"].tolist()
        origins = store.core.names.origins
        online = {
            number: self._broker.checking.online(origins[number].group) for number in set(numbers)
        }
        call.answer(
            [
                half_offsets,
                ids,
                [origins[number].group for number in numbers],
                [origins[number].ledger for number in numbers],
                [origins[number].allowed_ms for number in numbers],
                heads["state"],
                heads["stored_at_ms"],
                now_ms - started_at_ms(store, heads),
                heads["next_at_ms"] - now_ms,
                heads["checks_sent"],
                message_counts(store, heads),
                [online[number] for number in numbers],
            ],
            cursor=None if page.next_start is None else str(page.next_start),
        )

    def batches(self, call: Call[ListBatchesHeader]) -> None:
        """Decided batches: of each app the numbers by query, then the names."""
        apps, only = self._broker.store.core.batches.apps, call.header.app_id
        every = [
            (app_id, is_named, key)
            for app_id, app in apps.items()
            if only in ("", app_id)
            for is_named, keys in ((False, app.highest), (True, app.named))
            for key in keys
        ]
        keys, cursor = key_cursor(
            keys_after(every, call.header.cursor, tuple[str, bool, str]), call.limit()
        )
        call.answer_rows(
            [
                _batch(app_id, apps[app_id], key, is_named=is_named)
                for app_id, is_named, key in keys
            ],
            cursor=cursor,
        )


def _batch(app_id: str, app: AppBatches, key: str, *, is_named: bool) -> tuple[object, ...]:
    if is_named:
        batch = app.named[key]
        return app_id, batch.query_id, None, key, batch.log_offset
    return app_id, key, app.highest[key], None, None


def _states(names: str) -> tuple[State, ...]:
    found = {_STATES.get(name.strip()) for name in names.split(",")}
    states = tuple(state for state in found if state is not None)
    if len(states) < len(found):
        raise RequestRefused(
            "state_unknown", f"name some of {', '.join(_STATES)}", states=names[:64]
        )
    return states
