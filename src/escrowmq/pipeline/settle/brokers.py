"""The brokers of a settle round, as the driver sees them: which ones answer, and their policies."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import EscrowError
from escrowmq.model.lineage import Sight
from escrowmq.protocol.native.pipeline_headers import AwaitDueAnswer, AwaitDueHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.sights import sight_of
from escrowmq.protocol.native.status_answer import StatusAnswer
from escrowmq.transaction.policy import CheckPolicy

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

ANSWER_S = 10.0
THREADS_MAX = 8
"""Brokers that are asked or told something at the same time."""


@dataclass(frozen=True, kw_only=True)
class AnsweringBroker:
    """One broker that answers."""

    address: str
    #: The broker's own name.
    name: str
    #: Number of transactions that are neither decided nor parked.
    undecided: int
    #: Whether any of them may be due for something now.
    has_work: bool
    #: The broker's time rules.
    policy: CheckPolicy
    #: The broker's history, taken before any of its data is read. None from a release without a
    #: lineage.
    sight: Sight | None = None


def sights_of(standing: Sequence[AnsweringBroker]) -> dict[str, Sight]:
    """The histories by broker address, for the brokers that report one."""
    return {one.address: one.sight for one in standing if one.sight is not None}


def look_at(addresses: Sequence[str]) -> tuple[list[AnsweringBroker], dict[str, EscrowError]]:
    """Ask all brokers in parallel. Return those that answer, and why the others do not."""
    found: list[AnsweringBroker] = []
    away: dict[str, EscrowError] = {}
    with ThreadPoolExecutor(THREADS_MAX) as threads:
        for address, answer in zip(addresses, threads.map(_look_at, addresses), strict=True):
            if isinstance(answer, AnsweringBroker):
                found.append(answer)
            else:
                away[address] = answer
    return found, away


def _look_at(address: str) -> AnsweringBroker | EscrowError:
    try:
        with NativeCalls(address, answer_s=ANSWER_S) as calls:
            told = calls.call(NativeCode.STATUS).header
            # Sent even if nothing is undecided, because it also shows that the broker is alive.
            due = calls.call(NativeCode.AWAIT_DUE, AwaitDueHeader()).header
    except EscrowError as error:
        return error
    assert isinstance(told, StatusAnswer)
    assert isinstance(due, AwaitDueAnswer)
    policy = CheckPolicy.told_by(told)
    return AnsweringBroker(
        address=address,
        name=told.broker,
        undecided=due.undecided,
        has_work=(due.due > 0 and policy.is_for_pipelines) or due.sink_attempts > 0,
        policy=policy,
        sight=sight_of(told),
    )


def decided_batches(address: str) -> list[pa.RecordBatch]:
    """The decided batches of Spark sinks at this broker."""
    with NativeCalls(address) as calls:
        return [answer.batch for answer in calls.arrow_pages(NativeCode.LIST_BATCHES)]
