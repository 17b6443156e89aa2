"""Native requests about transactions, for the pipeline's rules and for people.

The broker answers each between two batches, so no fact leaves before it is durable.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from escrowmq.broker.checks.checking import Checking
from escrowmq.broker.native.calls import (
    PAGE_S_MAX,
    Call,
    ColumnMakers,
    looks,
    offset_cursor,
)
from escrowmq.broker.native.status import BrokerStatus
from escrowmq.broker.state.topics import Topics
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.broker.write.writer import Writer
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.answer_columns import Named, Sparse, Texts, compact
from escrowmq.protocol.native.headers import (
    ListBatchesHeader,
    ListTransactionsHeader,
    NativeAnswer,
    NativeHeader,
    PlanHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.status_answer import StatusAnswer
from escrowmq.store.disk.rows import Rows
from escrowmq.store.reading.identities import UNKNOWN, identities
from escrowmq.store.reading.listing import list_heads, message_counts, plan, started_at_ms
from escrowmq.store.store import Store
from escrowmq.transaction.memory.batches import AppBatches
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER, NamedOrigin
from escrowmq.transaction.states import State

TOPICS_FOUND_MAX = 20
"""Most names in ``topics_found`` of a status."""

_FILES_MAX = 2**62
"""Upper bound of the limit of open files that a status reports."""

IDS_MAX = 4_000
"""Most rows in a page with transaction ids: about as many as ``PAGE_S_MAX`` allows."""

IDS_AT_ONCE = 1_000
"""Transaction ids read from the log between two checks of the time."""

ROWS_PER_RANGE = 10_000
BYTES_PER_RANGE = 64 * 1024 * 1024
"""Approximate size of a planned range, unless the request gives a weight."""

_FIELDS = set(StatusAnswer.__struct_fields__) - set(NativeAnswer.__struct_fields__)
_OF_POLICY = sorted(_FIELDS & {field.name for field in fields(CheckPolicy)})
_OF_STATUS = sorted(_FIELDS & set(BrokerStatus.__struct_fields__) - {"log_end", *_OF_POLICY})
_DECIDED = (int(State.COMMITTED), int(State.ROLLED_BACK))
_STATES = {state.label: state for state in State}


@dataclass(frozen=True, slots=True)
class NativeFacts:
    """Handles questions about transactions."""

    read_status: Callable[[], BrokerStatus]
    store: Store
    clock: BrokerClock
    checking: Checking
    writer: Writer
    topics: Topics

    @looks(NativeCode.STATUS)
    def status(self, call: Call[NativeHeader]) -> None:
        """Answer with the broker's status."""
        stands = self.read_status()
        table, policy = self.store.table, self.store.core.policy
        call.answer(
            **{name: getattr(stands, name) for name in _OF_STATUS},
            # Not the end of the log, because lists of the log show only what is durable.
            log_end=self.store.durable_end,
            **{name: getattr(policy, name) for name in _OF_POLICY},
            broker_version=stands.version,
            checks_sent=self.checking.asked_count,
            topics=sum(1 for _ in self.topics.all()),
            queues=len(self.store.queues),
            half_start=table.start,
            half_end=table.end,
            flush_ms_median=self.writer.flush_times.quantile_ms(0.5),
            flush_ms_p99=self.writer.flush_times.quantile_ms(0.99),
            offsets_lost=stands.catalog.offsets_lost,
            topics_found=",".join(stands.catalog.topics_found[:TOPICS_FOUND_MAX]),
            lineage=self.store.core.lineage.encode(),
            open_files_max=min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _FILES_MAX),
        )

    @looks(NativeCode.PLAN_RANGES)
    def plan(self, call: Call[PlanHeader]) -> None:
        """Answer with ranges that can be read in parallel."""
        header, store = call.header, self.store
        ranges_max = call.spec.answer_rows_max
        if header.what == "transactions":
            # Ranges may hold much less than their weight. With this least weight, an answer holds
            # all of them.
            weight = header.weight if header.weight > 0 else ROWS_PER_RANGE
            ranges = plan(store, max(weight, 4 * store.table.needed // ranges_max + 1))
        elif header.what == "log":
            start, end = store.log.start, store.durable_end
            size = header.weight if header.weight > 0 else BYTES_PER_RANGE
            size = max(size, (end - start) // ranges_max + 1)
            ranges = [(at, min(at + size, end), size) for at in range(start, end, size)]
        else:
            raise RequestRefused(
                "plan_unknown", "ask for `transactions` or `log`", what=header.what[:64]
            )
        call.answer_rows(ranges)

    @looks(NativeCode.LIST_TRANSACTIONS)
    def transactions(self, call: Call[ListTransactionsHeader]) -> None:
        """List transactions by range and states."""
        header, store = call.header, self.store
        end = header.end if header.end >= 0 else NEVER
        page = list_heads(
            store,
            offset_cursor(header.cursor, max(header.start, 0)),
            end,
            _states(header.states),
            limit=call.limit(IDS_MAX) if header.with_ids else call.limit(),
        )
        heads, next_start = page.heads, page.next_start
        if header.producer_group:
            # Filtered after the limit: a page may have few rows, but it never takes long.
            heads = _of_group(store, heads, header.producer_group)
        ids: list[bytes | None] = [None] * len(heads)
        first = _undecided_heads(heads)
        if header.with_ids:
            ids, first = _identities(store, heads)
            if len(ids) < len(heads):
                heads, next_start = heads[: len(ids)], int(heads["half_offset"][len(ids)])
        call.answer_list(
            self._columns(heads, ids, first),
            cursor=None if next_start is None else str(next_start),
        )

    def _columns(self, heads: Rows, ids: list[bytes | None], first: Rows) -> ColumnMakers:
        store = self.store
        now_ms = self.clock.now_ms()
        numbers, seen = compact(heads["origin"])
        origins = [store.core.names.origins[number] for number in seen]

        def of_origin(value: Callable[[NamedOrigin], int]) -> Rows:
            values: Rows = np.array([value(origin) for origin in origins], dtype=np.int64)[numbers]
            return values

        return {
            "half_offset": lambda: heads["half_offset"],
            "head": lambda: Sparse(first, first < 0),
            "transaction_id": lambda: Texts(ids),
            "producer_group": lambda: Named(numbers, [origin.group for origin in origins]),
            "ledger": lambda: Named(numbers, [origin.ledger for origin in origins]),
            "allowed_ms": lambda: of_origin(lambda origin: origin.allowed_ms),
            "state": lambda: heads["state"],
            "stored_at_ms": lambda: heads["stored_at_ms"],
            "age_ms": lambda: now_ms - started_at_ms(store, heads),
            "wait_ms": lambda: heads["next_at_ms"] - now_ms,
            "checks_sent": lambda: heads["checks_sent"],
            "message_count": lambda: message_counts(store, heads),
            "producers_online": lambda: of_origin(
                lambda origin: self.checking.online(origin.group)
            ),
        }

    @looks(NativeCode.LIST_BATCHES)
    def batches(self, call: Call[ListBatchesHeader]) -> None:
        """List decided batches: for each app the highest number by query, then named batches."""
        apps, only = self.store.core.batches.apps, call.header.app_id
        every = [
            (app_id, is_named, key)
            for app_id, app in apps.items()
            if only in ("", app_id)
            for is_named, keys in ((False, app.highest), (True, app.named))
            for key in keys
        ]
        keys, cursor = call.page_of(every, tuple[str, bool, str])
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


def _of_group(store: Store, heads: Rows, group: str) -> Rows:
    numbers, seen = compact(heads["origin"])
    is_its = [store.core.names.origins[number].group == group for number in seen]
    its: Rows = heads[np.array(is_its, dtype=np.bool_)[numbers]]
    return its


def _undecided_heads(heads: Rows) -> Rows:
    """Return the heads of undecided transactions; ``UNKNOWN`` for decided ones."""
    is_decided = np.isin(heads["state"], _DECIDED)
    return np.where(is_decided, UNKNOWN, heads["half_offset"])


def _identities(store: Store, heads: Rows) -> tuple[list[bytes | None], Rows]:
    """Return ids and heads from the log, for as many rows as ``PAGE_S_MAX`` allows."""
    ids: list[bytes | None] = []
    first: list[Rows] = []
    until = time.monotonic() + PAGE_S_MAX
    while len(ids) < len(heads):
        some = heads[len(ids) : len(ids) + IDS_AT_ONCE]
        found, firsts = identities(store, some["half_offset"], some["location"])
        ids += found
        first.append(firsts)
        if time.monotonic() >= until:
            break
    return ids, np.concatenate([np.empty(0, dtype=np.int64), *first])


def _states(names: str) -> tuple[State, ...]:
    found = {_STATES.get(name.strip()) for name in names.split(",")}
    states = tuple(state for state in found if state is not None)
    if len(states) < len(found):
        raise RequestRefused(
            "state_unknown", f"name some of {', '.join(_STATES)}", states=names[:64]
        )
    return states
