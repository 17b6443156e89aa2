"""Wrong data planted in a broker's files: the audit finds each, with its kind and transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.audit.compare import AuditRequest
from escrowmq.pipeline.audit.findings import Breach, FindingName
from escrowmq.pipeline.audit.job import run_audit
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from escrowmq.transaction.policy import HOUR_MS, CheckPolicy
from escrowmq.transaction.records import NEVER, Decided, Record
from escrowmq.transaction.states import State
from tests.spark.audit_day import Day, live
from tests.spark.plants import StoppedStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.pipeline.audit.report import AuditReport
    from escrowmq.store.disk.rows import Rows

#: The lie -> what the audit finds: the finding, its kind, and the transaction.
LIES = {
    "an op record says the opposite": [
        (FindingName.TABLE_CONTRADICTS, Breach.CONTRADICTORY, "flipped-op"),
        (FindingName.VISIBLE_NOT_COMMITTED, Breach.PHANTOM, "flipped-op"),
    ],
    "the state table says the opposite": [
        (FindingName.TABLE_CONTRADICTS, Breach.CONTRADICTORY, "flipped-row"),
    ],
    "the state table has forgotten a decision": [
        (FindingName.DECISION_FORGOTTEN, Breach.LOST, "forgotten"),
        (FindingName.UNDECIDED_TOO_LONG, Breach.STUCK, "forgotten"),
    ],
    "the state table knows a decision that nobody made": [
        (FindingName.DECISION_WITHOUT_OP, Breach.PHANTOM, "made-up"),
    ],
    "the state table lost a message of a request": [
        (FindingName.COUNT_DIFFERS, Breach.CONTRADICTORY, "shrunk"),
    ],
    "the state table lost a transaction": [
        (FindingName.HALF_NOT_IN_TABLE, Breach.LOST, "dropped"),
    ],
    "a queue shows a message twice, in the place of another": [
        (FindingName.VISIBLE_TWICE, Breach.DOUBLED, "shown-twice"),
        (FindingName.COMMITTED_NOT_VISIBLE, Breach.LOST, "shown-never"),
    ],
    "a queue shows what was rolled back": [
        (FindingName.VISIBLE_NOT_COMMITTED, Breach.PHANTOM, "rolled-back"),
        (FindingName.COMMITTED_NOT_VISIBLE, Breach.LOST, "displaced"),
    ],
    "an op record decides another transaction": [
        (FindingName.DECIDED_BOTH_WAYS, Breach.CONTRADICTORY, "decided-twice"),
        (FindingName.DECISION_WITHOUT_OP, Breach.PHANTOM, "left-out"),
        (FindingName.VISIBLE_NOT_COMMITTED, Breach.PHANTOM, "left-out"),
    ],
    "an op record cannot be read": [
        (FindingName.DECISION_WITHOUT_OP, Breach.PHANTOM, "damaged-op"),
        (FindingName.VISIBLE_NOT_COMMITTED, Breach.PHANTOM, "damaged-op"),
        (FindingName.UNREADABLE, Breach.LOST, ""),
    ],
    "a half message's record cannot be read": [
        (FindingName.ROW_WITHOUT_HALF, Breach.PHANTOM, "damaged-half"),
        (FindingName.OP_WITHOUT_HALF, Breach.PHANTOM, "damaged-half"),
        (FindingName.VISIBLE_WITHOUT_HALF, Breach.PHANTOM, "damaged-half"),
        (FindingName.UNREADABLE, Breach.LOST, ""),
    ],
    "nobody parks what is too old": [
        (FindingName.UNDECIDED_TOO_LONG, Breach.STUCK, "stuck"),
    ],
}


@pytest.fixture(scope="module")
def lied(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Day, AuditReport]]:
    """Yield the report about a broker with all lies planted in it."""
    data = tmp_path_factory.mktemp("lies")
    policy = CheckPolicy(park_after_ms=HOUR_MS)
    with InProcessBroker(data=data, policy=policy) as broker:
        day = Day(broker.broker_address)
        _hold(day)
        live(day, "sound-")
        places = _places(day)
        broker.stop()
        _plant(StoppedStore(data), day, places)
        broker.start()
        # Transactions that are held after this jump are open for less than the hour.
        broker.advance(ms=HOUR_MS + 20 * 60_000)
        live(day, "later-")
        day.roll_back("sound-10", "sound-11", "sound-open", "sound-resumed")
        yield day, run_audit(spark, AuditRequest(brokers=(broker.broker_address,)))


def _hold(day: Day) -> None:
    names = [name for found in LIES.values() for _, _, name in found if name]
    for name in dict.fromkeys(names):
        day.hold(name, [day.sent()] * 3 if name == "shrunk" else [day.sent()])
    day.commit("flipped-op", "flipped-row", "forgotten", "shrunk", "dropped")
    for name in ("shown-twice", "shown-never", "displaced", "damaged-op", "damaged-half"):
        day.commit(name)
    day.roll_back("rolled-back")
    day.roll_back("decided-twice")
    day.commit("left-out")


def _places(day: Day) -> dict[str, tuple[int, int]]:
    """Return, by transaction, the log offsets of its half message and its decision."""
    with NativeCalls(day.address) as calls:
        halves = {row.head: row.log_offset for row in calls.rows(NativeCode.LIST_HALVES)}
        ops = {row.head: row.log_offset for row in calls.rows(NativeCode.LIST_OPS)}
    return {name: (halves[head], ops.get(head, -1)) for name, head in day.heads.items()}


def _plant(store: StoppedStore, day: Day, places: dict[str, tuple[int, int]]) -> None:
    heads = day.heads
    store.change_frame(places["flipped-op"][1], _flipped)
    store.change_state(heads["flipped-row"], state=State.ROLLED_BACK)
    store.change_state(heads["forgotten"], state=State.PREPARED)
    store.change_state(heads["made-up"], state=State.COMMITTED, next_at_ms=NEVER)
    store.change_state(heads["shrunk"], part=0x8000 | 2)
    store.change_state(heads["dropped"], size=0)

    def show(rows: Rows) -> None:
        at = {int(row["log_offset"]): number for number, row in enumerate(rows)}
        entries = {name: at.get(int(store.state_row(heads[name])["log_offset"])) for name in heads}
        rows[entries["shown-never"]] = rows[entries["shown-twice"]]
        hidden = store.state_row(heads["rolled-back"])
        for field in ("log_offset", "size", "crc"):
            rows[field][entries["displaced"]] = hidden[field]

    store.change_queue(day.topic, 0, show)
    target = heads["decided-twice"]
    store.change_frame(places["left-out"][1], lambda record: _of_another(record, target))
    store.damage_frame(places["damaged-op"][1])
    store.damage_frame(places["damaged-half"][0])


def _flipped(record: Record) -> Record:
    assert isinstance(record, Decided)
    return msgspec.structs.replace(record, state=int(State.ROLLED_BACK))


def _of_another(record: Record, head: int) -> Record:
    assert isinstance(record, Decided)
    return msgspec.structs.replace(record, head=head, ranges=[(head, 1)])


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_found_with_its_kind_and_its_transaction(
    lied: tuple[Day, AuditReport], lie: str
) -> None:
    day, report = lied
    found = {
        (one.name, one.kind, case.half_offset) for one in report.findings for case in one.cases
    }
    for name, kind, transaction in LIES[lie]:
        assert (name, kind, day.heads.get(transaction)) in found


def test_nothing_else_is_found(lied: tuple[Day, AuditReport]) -> None:
    day, report = lied
    expected = {
        (name, day.heads.get(transaction))
        for found in LIES.values()
        for name, _, transaction in found
    }
    found = {(one.name, case.half_offset) for one in report.findings for case in one.cases}
    assert found == expected
