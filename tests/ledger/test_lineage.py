"""A broker whose history went back: rows that may be swept are parked, the others are fenced."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from escrowmq import Producer
from escrowmq.cli.main import main
from escrowmq.client.ledger.checks import Question
from escrowmq.client.messages.messages import Message
from escrowmq.client.messages.outgoing import FinalDecision, HeldTransaction
from escrowmq.client.network.background import background
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.client.producer.decide_by_hand import decide_by_hand
from escrowmq.model.errors import RequestRefused
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.native.headers import ByHeader, TransactionHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import DecisionRow, VerdictRow
from escrowmq.protocol.native.sights import sight_of
from escrowmq.protocol.native.status_answer import StatusAnswer
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.repair.repair import repair
from escrowmq.testing import InProcessBroker
from tests.ledger.shops import GROUP, Shop, new_id

PAID = "order-paid"
HOUR_S = 3_600


@contextmanager
def brokers(data: Path, shop: Shop) -> Iterator[InProcessBroker]:
    with InProcessBroker(data=data, ledgers=[shop.ledger()]) as broker:
        yield broker


def pay(shop: Shop, producer: Producer, number: int) -> str:
    """Write an order and send its message in one transaction; return the transaction's id."""
    with shop.engine().connect() as connection, producer.transaction(connection) as tx:
        connection.execute(text(f"INSERT INTO orders VALUES ({number})"))
        tx.send(PAID, str(number).encode())
    return tx.transaction_id


def paid(broker: InProcessBroker) -> list[bytes]:
    return sorted(message.body for message in broker.messages(PAID))


@contextmanager
def before_decisions(producer: Producer, step: Callable[[], object]) -> Iterator[None]:
    """Run a step after the database's COMMIT, before the broker gets the decision."""
    producing: Any = background().run(producer._core.started())
    decide = producing.decide

    async def late(held: HeldTransaction, resolution: Resolution) -> FinalDecision:
        step()
        decided: FinalDecision = await decide(held, resolution)
        return decided

    producing.decide = late
    try:
        yield
    finally:
        producing.decide = decide


def raw_copy(data: Path, to: Path, _broker: InProcessBroker) -> None:
    """Copy the directory, as a file copy or a disk snapshot would."""
    shutil.copytree(data, to)
    (to / "lock").unlink(missing_ok=True)


def with_our_tools(_data: Path, to: Path, broker: InProcessBroker) -> None:
    backup = to.parent / "backup"
    for words in (
        ["backup", str(backup), "--broker", broker.broker_address],
        ["restore", str(backup), "--data-dir", str(to)],
    ):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 0


@pytest.mark.parametrize("take_copy", [raw_copy, with_our_tools])
def test_rows_swept_after_a_backup_are_parked_and_never_fenced(
    shop: Shop, tmp_path: Path, take_copy: Callable[[Path, Path, InProcessBroker], None]
) -> None:
    """Without the mark, a false fence would roll back the committed order."""
    data, restored = tmp_path / "data", tmp_path / "restored"
    with brokers(data, shop) as broker, shop_producer(broker, shop) as producer:
        with before_decisions(producer, lambda: take_copy(data, restored, broker)):
            swept = pay(shop, producer, 1)
        assert producer.clean_ledger() == 1
        assert paid(broker) == [b"1"]
    with brokers(restored, shop) as broker:
        broker.advance(seconds=HOUR_S)
        done = broker.run_checks()
        assert (done.rolled_back, len(done.parked)) == ([], 1)
        assert shop.outcomes() == {}, "no fence was written"
        assert parked_because(broker, swept) == "maybe_swept"
        # A transaction that was held after the restore cannot have been swept, so it is fenced as
        # usual.
        with shop_producer(broker, shop) as producer:
            lost = hold(shop, broker, producer)
        broker.advance(seconds=HOUR_S)
        assert len(broker.run_checks().rolled_back) == 1
        assert shop.outcomes() == {lost: "rolled_back"}
        # Settling by hand does not guess either, unless a person forces it.
        with NativeCalls(broker.broker_address) as calls, pytest.raises(RequestRefused) as refused:
            decide_by_hand(
                calls,
                {shop.ledger().uuid(): shop.ledger()},
                transaction_id=swept,
                resolution=Resolution.ROLLBACK,
                reason="test",
                by="me",
            )
        assert refused.value.fields["says"] == "maybe_swept"


def test_a_restart_is_no_fork(shop: Shop, tmp_path: Path) -> None:
    with brokers(tmp_path / "data", shop) as broker:
        with shop_producer(broker, shop) as producer:
            pay(shop, producer, 1)
            assert producer.clean_ledger() == 1
            lost = hold(shop, broker, producer)
        broker.restart()
        broker.advance(seconds=HOUR_S)
        assert len(broker.run_checks().rolled_back) == 1
        assert shop.outcomes() == {lost: "rolled_back"}


def test_a_sweep_after_a_restore_is_not_mistaken_for_one_before_it(
    shop: Shop, tmp_path: Path
) -> None:
    """Both histories sweep the same ledger; each mark stays as long as it is needed."""
    data, restored = tmp_path / "data", tmp_path / "restored"
    with brokers(data, shop) as broker, shop_producer(broker, shop) as producer:
        with before_decisions(producer, lambda: raw_copy(data, restored, broker)):
            pay(shop, producer, 1)
        producer.clean_ledger()
    with brokers(restored, shop) as broker:
        with shop_producer(broker, shop) as producer:
            pay(shop, producer, 2)
            assert producer.clean_ledger() == 1
        assert len(shop.run("SELECT epoch FROM escrowmq_ledger_swept")) == 2
        broker.restart()
        with shop_producer(broker, shop) as producer:
            pay(shop, producer, 3)
            assert producer.clean_ledger() == 1
        assert len(shop.run("SELECT epoch FROM escrowmq_ledger_swept")) == 2, "one was replaced"
        broker.advance(seconds=HOUR_S)
        assert len(broker.run_checks().parked) == 1


def test_a_mark_newer_than_the_facts_fences_nothing(shop: Shop, tmp_path: Path) -> None:
    with brokers(tmp_path / "data", shop) as broker, shop_producer(broker, shop) as producer:
        lost = hold(shop, broker, producer)
        with NativeCalls(broker.broker_address) as calls:
            before = sight_of(status(calls))
        pay(shop, producer, 1)
        assert producer.clean_ledger() == 1
        with NativeCalls(broker.broker_address) as calls:
            after = sight_of(status(calls))
    for sight, outcome in ((before, LedgerOutcome.UNKNOWN), (after, LedgerOutcome.ROLLED_BACK)):
        answers = shop.settle(question(lost), sight=sight)
        assert answers[lost].outcome is outcome
    assert shop.settle(question(new_id()), sight=None).popitem()[1].reason == "no_lineage"


@pytest.mark.parametrize("by_batch", [True, False])
def test_a_late_decision_does_not_reach_a_stranger(
    shop: Shop, tmp_path: Path, *, by_batch: bool
) -> None:
    """After a restore, another transaction got the same offsets, byte for byte."""
    data, restored = tmp_path / "data", tmp_path / "restored"
    with brokers(data, shop) as broker:
        raw_copy(data, restored, broker)
    shutil.rmtree(data)
    shutil.copytree(restored, data)
    with brokers(data, shop) as broker, shop_producer(broker, shop) as producer:
        held = holding(producer, shop)
        with NativeCalls(broker.broker_address) as calls:
            seen = status(calls)
    with brokers(restored, shop) as broker, shop_producer(broker, shop) as producer:
        stranger = holding(producer, shop)
        assert (stranger.half_offset, stranger.log_offset) == (held.half_offset, held.log_offset)
        with NativeCalls(broker.broker_address) as calls:
            if by_batch:
                row = DecisionRow(held.half_offset, "commit", GROUP, held.log_offset)
                header = ByHeader(epoch=held.epoch)
                (answer,) = calls.call(NativeCode.DECIDE_MANY, header, [row]).rows
                assert answer.refused == "other_history"
            else:
                verdict = VerdictRow(held.half_offset, "commit", 0, 0, None)
                header = ByHeader(epoch=seen.epoch, log_end=seen.log_end)
                (told,) = calls.call(NativeCode.OBEY_VERDICTS, header, [verdict]).rows
                assert told.outcome == "stale"
        assert [one.half_offset for one in broker.undecided()] == [stranger.half_offset]
        assert paid(broker) == []


def test_a_producer_that_is_asked_after_a_restore_does_not_guess_either(
    shop: Shop, tmp_path: Path
) -> None:
    data, restored = tmp_path / "data", tmp_path / "restored"
    with brokers(data, shop) as broker, hasty_producer(broker, shop) as producer:
        with before_decisions(producer, lambda: raw_copy(data, restored, broker)):
            pay(shop, producer, 1)
        producer.clean_ledger()
    # The broker cannot read the ledger, so it asks the producer, which can.
    with InProcessBroker(data=restored) as broker, hasty_producer(broker, shop) as producer:
        producer.start()
        lost = hold(shop, broker, producer)
        broker.advance(seconds=HOUR_S)
        assert len(broker.run_checks().asked) == 2
        (left,) = broker.undecided()
        assert left.transaction_id != lost
        assert shop.outcomes() == {lost: "rolled_back"}


def test_a_tail_that_a_power_cut_took_parks_what_may_have_been_swept(
    shop: Shop, tmp_path: Path
) -> None:
    """With durability = "os", the decision was confirmed and swept before it was on disk."""
    data, left = tmp_path / "data", tmp_path / "left"
    ends: list[int] = []
    with brokers(data, shop) as broker, shop_producer(broker, shop) as producer:

        def note_end() -> None:
            with NativeCalls(broker.broker_address) as calls:
                ends.append(status(calls).log_end)

        with before_decisions(producer, note_end):
            pay(shop, producer, 1)
        assert producer.clean_ledger() == 1
        raw_copy(data, left, broker)
    (segment,) = (left / "store" / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.truncate(ends[0])
    with brokers(left, shop) as broker:
        broker.advance(seconds=HOUR_S)
        assert len(broker.run_checks().parked) == 1
        assert shop.outcomes() == {}, "no fence was written"


def test_a_repair_that_drops_decisions_parks_what_may_have_been_swept(
    shop: Shop, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with brokers(data, shop) as broker, shop_producer(broker, shop) as producer:
        swept = pay(shop, producer, 1)
        with NativeCalls(broker.broker_address) as calls:
            line = calls.call(
                NativeCode.LIFE_LINE, TransactionHeader(transaction_id=swept, leaves_marks=True)
            )
        (committed,) = (row.log_offset for row in line.rows if row.event == "committed")
        assert producer.clean_ledger() == 1
    segment = next((data / "store" / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(committed + 8)
        file.write(b"\xff" * 8)
    for name in ("checkpoint", "checkpoint.old"):
        (data / "store" / name).unlink(missing_ok=True)
    repair(OsDisk(data / "store"), OsDisk(tmp_path / "aside"))
    with brokers(data, shop) as broker:
        broker.advance(seconds=HOUR_S)
        assert len(broker.run_checks().parked) == 1
        assert shop.outcomes() == {}


def test_a_ledger_that_version_1_swept_counts_as_swept_before_the_first_epoch(
    shop: Shop, tmp_path: Path
) -> None:
    """Version 1 left no marks, and the broker kept no lineage then."""
    with brokers(tmp_path / "data", shop) as broker:
        with shop_producer(broker, shop) as producer:
            hold(shop, broker, producer)
        broker.advance(seconds=HOUR_S)
        shop.run("UPDATE escrowmq_ledger_version SET is_swept_unmarked = 1")
        try:
            # It was held under an epoch, so an SDK of version 1 could not sweep it.
            assert len(broker.run_checks().rolled_back) == 1
            with NativeCalls(broker.broker_address) as calls, pytest.raises(RequestRefused) as old:
                calls.call(NativeCode.LIFE_LINE, TransactionHeader(half_offset=0, limit=1))
            assert old.value.code == "client_outdated"
        finally:
            shop.run("UPDATE escrowmq_ledger_version SET is_swept_unmarked = 0")


def shop_producer(broker: InProcessBroker, shop: Shop) -> Producer:
    return Producer(broker.address, GROUP, ledger=shop.ledger())


def hasty_producer(broker: InProcessBroker, shop: Shop) -> Producer:
    """Return a producer whose deadlines pass at once, on its own clock, too."""
    return Producer(broker.address, GROUP, ledger=shop.ledger(), max_duration_s=0.001)


def hold(shop: Shop, broker: InProcessBroker, producer: Producer) -> str:
    """Hold a half message whose transaction never commits."""
    before = len(broker.undecided())
    held = holding(producer, shop)
    assert len(broker.undecided()) == before + 1
    return held.transaction_id


def holding(producer: Producer, shop: Shop) -> HeldTransaction:
    message = Message(topic=PAID, body=b"7")
    producing = background().run(producer._core.started())
    return background().run(producing.hold(new_id(), [message], ledger=shop.ledger().uuid()))


def question(transaction_id: str) -> Question:
    return Question(transaction_id, GROUP, 0)


def status(calls: NativeCalls) -> StatusAnswer:
    told: StatusAnswer = calls.call(NativeCode.STATUS).header
    return told


def parked_because(broker: InProcessBroker, transaction_id: str) -> str:
    with NativeCalls(broker.broker_address) as calls:
        line = calls.call(
            NativeCode.LIFE_LINE,
            TransactionHeader(transaction_id=transaction_id, leaves_marks=True),
        )
    (reason,) = (str(row.detail) for row in line.rows if row.event == "parked")
    return reason
