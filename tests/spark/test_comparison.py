"""The half/op comparison: each round joins what is new with what is open, and checks the store."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.audit.compare import AuditRequest
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.job import run_audit
from escrowmq.pipeline.compare.checkpoint import Checkpoints, ComparisonCheckpoint
from escrowmq.pipeline.compare.planning import RoundLimits
from escrowmq.pipeline.compare.rounds import Comparing, ComparisonSummary
from escrowmq.protocol.native.comparisons import ComparisonRow
from escrowmq.protocol.native.operator_headers import DeleteTopicHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.mapped.record_file import path_of
from escrowmq.store.mapped.records import CODES, RECORD
from escrowmq.testing import InProcessBroker
from escrowmq.transaction.policy import HOUR_MS, CheckPolicy
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from tests.spark.audit_day import Day, live
from tests.spark.plants import StoppedStore
from tests.spark.test_audit_sound import retain_all
from tests.spark.topics import decide

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

#: Small, so that requests cross the borders of ranges.
RANGE_HALVES = 5


class Compared:
    """A broker, its day, and a comparison that keeps its checkpoint below ``folder``."""

    def __init__(
        self, spark: SparkSession, folder: Path, policy: CheckPolicy | None = None
    ) -> None:
        self.spark = spark
        self.folder = folder
        self.broker = InProcessBroker(data=folder / "data", queue_count=3, policy=policy)
        self.comparing = self.make()

    @property
    def address(self) -> str:
        return self.broker.broker_address

    def make(self, **limits: int) -> Comparing:
        return Comparing(
            self.spark,
            str(self.folder / "checkpoints"),
            pipeline="test",
            limits=RoundLimits(range_halves=RANGE_HALVES, **limits),
        )

    def round(self) -> ComparisonSummary:
        return self.comparing.round([self.address])

    def report(self) -> list[ComparisonRow]:
        with NativeCalls(self.address) as calls:
            return list(calls.rows(NativeCode.LIST_COMPARISON))

    def delete_topic(self, name: str) -> None:
        with NativeCalls(self.address) as calls:
            header = DeleteTopicHeader(topic=name, by="somebody", is_forced=True)
            calls.call(NativeCode.DELETE_TOPIC, header)

    def view(self) -> list[Row]:
        reader = self.spark.read.format("escrowmq").option("view", "comparison")
        return reader.option("broker", self.address).load().collect()

    def found(self) -> set[tuple[str | None, int | None]]:
        return {(row.finding, row.half_offset) for row in self.report() if row.finding}

    def checkpoint(self) -> ComparisonCheckpoint:
        with NativeCalls(self.address) as calls:
            store_id = calls.call(NativeCode.STATUS).header.lineage.partition("/")[0]
        checkpoint, why = Checkpoints(str(self.folder / "checkpoints")).load(store_id)
        assert checkpoint is not None, why
        return checkpoint


@pytest.fixture
def compared(spark: SparkSession, tmp_path: Path) -> Iterator[Compared]:
    made = Compared(spark, tmp_path)
    with made.broker:
        yield made


def test_rounds_follow_the_records_and_agree_with_the_store(compared: Compared) -> None:
    day = Day(compared.address)
    live(day, "first-")
    first = compared.round()
    assert (first.begun, first.differences_held, first.is_behind) == (1, 0, False)
    (told,) = compared.report()
    checkpoint = compared.checkpoint()
    with NativeCalls(compared.address) as calls:
        undecided = [row.half_offset for row in calls.rows(NativeCode.LIST_TRANSACTIONS)]
    assert sorted(set(checkpoint.open_rows["head"].tolist())) == undecided
    assert told.decided_before == undecided[0]
    assert told.open_requests == len(checkpoint.open_rows)

    # Old ones are decided, one of them with several requests; new ones come.
    day.commit("first-11")
    live(day, "second-")
    second = compared.round()
    assert (second.begun, second.differences_held) == (0, 0)
    # It read what is new, and not the history.
    assert second.half_messages == first.half_messages
    assert day.heads["first-11"] not in compared.checkpoint().open_rows["head"]

    # A late commit parks what was held for an incarnation of a topic that is gone.
    compared.delete_topic(day.topic)
    day.hold("anew")
    decide(compared.broker, day.heads["second-open"])
    assert compared.round().differences_held == 0
    assert day.heads["second-open"] in compared.checkpoint().open_rows["head"]

    # Without new records, nothing is new.
    third = compared.round()
    assert (third.half_messages, third.decisions, third.differences_held) == (0, 0, 0)
    (row,) = compared.view()
    assert row.finding is None
    assert row.outcome == "caught_up"
    assert row.decided_before == compared.checkpoint().decided_before


def test_a_corrupt_state_store_is_found_told_and_over_once_it_is_repaired(
    compared: Compared,
) -> None:
    day = Day(compared.address)
    live(day, "first-")
    for name in ("flipped", "forgotten", "made-up", "fresh", "fresh-forgotten"):
        day.hold(name)
    day.commit("flipped", "forgotten")
    assert compared.round().differences_held == 0
    day.commit("fresh", "fresh-forgotten")
    heads = day.heads
    compared.broker.stop()
    store = StoppedStore(compared.folder / "data")
    # Decided before the last round, and decided since.
    store.change_state(heads["forgotten"], state=State.PREPARED, next_at_ms=0)
    store.change_state(heads["made-up"], state=State.COMMITTED, next_at_ms=NEVER)
    store.change_state(heads["fresh"], state=State.ROLLED_BACK)
    store.change_state(heads["fresh-forgotten"], state=State.PREPARED, next_at_ms=0)
    compared.broker.start()
    assert compared.round().differences_held == 4
    expected = {
        (FindingName.DECISION_FORGOTTEN, heads["forgotten"]),
        (FindingName.DECISION_WITHOUT_OP, heads["made-up"]),
        (FindingName.TABLE_CONTRADICTS, heads["fresh"]),
        (FindingName.DECISION_FORGOTTEN, heads["fresh-forgotten"]),
    }
    assert compared.found() == expected
    assert {(row.finding, row.half_offset) for row in compared.view()} == expected
    # They are told again as long as they hold.
    day.hold("later")
    assert compared.round().differences_held == 4
    assert compared.found() == expected
    report = run_audit(compared.spark, AuditRequest(brokers=(compared.address,)))
    (found,) = [one for one in report.findings if one.name is FindingName.ROUND_DIFFERS]
    assert found.total == 4

    compared.broker.stop()
    store.change_state(heads["forgotten"], state=State.COMMITTED, next_at_ms=NEVER)
    store.change_state(heads["made-up"], state=State.PREPARED, next_at_ms=0)
    store.change_state(heads["fresh"], state=State.COMMITTED)
    store.change_state(heads["fresh-forgotten"], state=State.COMMITTED, next_at_ms=NEVER)
    compared.broker.start()
    assert compared.round().differences_held == 0
    assert compared.found() == set()


class StateStoreFault:
    """Changes records of a state store beside the broker, which does not notice it at once."""

    def __init__(self, kind: str, data: Path) -> None:
        self.kind = kind
        self.data = data

    def forget(self, half_offset: int) -> None:
        """Take an undecided transaction out."""
        if self.kind == "sql":
            self._run("DELETE FROM escrowmq_state_transactions WHERE half_offset = ?", half_offset)
        else:
            self._put(half_offset, State.COMMITTED)

    def undecide(self, half_offset: int, like: int) -> None:
        """Add a decided transaction as an undecided one."""
        if self.kind == "sql":
            self._copy(half_offset, like)
        else:
            self._put(half_offset, State.PREPARED)

    def undo(self, forgotten: int, undecided: int) -> None:
        """Make it what it was."""
        if self.kind == "sql":
            self._copy(forgotten, undecided)
            self._run("DELETE FROM escrowmq_state_transactions WHERE half_offset = ?", undecided)
        else:
            self._put(forgotten, State.PREPARED)
            self._put(undecided, State.COMMITTED)

    def _copy(self, half_offset: int, like: int) -> None:
        with closing(sqlite3.connect(self.data / "state.db")) as database, database:
            found = database.execute(
                "SELECT * FROM escrowmq_state_transactions WHERE half_offset = ?", (like,)
            )
            names = [name for name, *_ in found.description]
            row = dict(zip(names, found.fetchone(), strict=True)) | {"half_offset": half_offset}
            marks = ", ".join("?" * len(names))
            database.execute(
                f"INSERT INTO escrowmq_state_transactions VALUES ({marks})", list(row.values())
            )

    def _run(self, statement: str, half_offset: int) -> None:
        with closing(sqlite3.connect(self.data / "state.db")) as database, database:
            assert database.execute(statement, (half_offset,)).rowcount == 1

    def _put(self, half_offset: int, state: State) -> None:
        # The broker maps the file, so it sees what is written into it.
        with (self.data / path_of(0)).open("r+b") as file:
            records = np.frombuffer(file.read(), dtype=RECORD).copy()
            records["state"][half_offset] = CODES[state]
            file.seek(0)
            file.write(records.tobytes())


@pytest.mark.parametrize("kind", ["mapped", "sql"])
def test_a_corrupt_record_of_the_chosen_state_store_is_found(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    compared = Compared(spark, tmp_path, CheckPolicy(state_store=kind))  # type: ignore[arg-type]
    fault = StateStoreFault(kind, tmp_path / "data/store")
    with compared.broker:
        day = Day(compared.address)
        live(day, "first-")
        day.hold("forgotten")
        day.hold("decided")
        day.commit("decided")
        forgotten, decided = day.heads["forgotten"], day.heads["decided"]
        assert compared.round().differences_held == 0
        assert compared.report()[0].state_store == "compared"

        fault.undecide(decided, like=forgotten)
        fault.forget(forgotten)
        expected = {
            (FindingName.STATE_STORE_LACKS, forgotten),
            (FindingName.STATE_STORE_KEEPS, decided),
        }
        assert compared.round().differences_held == 2
        assert compared.found() == expected
        assert {row.recorded for row in compared.report()} == {"prepared", "committed"}
        # New records do not hide them.
        live(day, "second-")
        assert compared.round().differences_held == 2
        assert compared.found() == expected

        fault.undo(forgotten, decided)
        assert compared.round().differences_held == 0
        assert compared.report()[0].state_store == "compared"


def test_a_round_says_that_the_state_store_is_away_and_keeps_what_it_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    compared = Compared(spark, tmp_path, CheckPolicy(state_store="sql"))
    with compared.broker:
        day = Day(compared.address)
        day.hold("forgotten")
        assert compared.round().differences_held == 0
        StateStoreFault("sql", tmp_path / "data/store").forget(0)
        assert compared.round().differences_held == 1
        with closing(sqlite3.connect(tmp_path / "data/store/state.db")) as database, database:
            database.execute("ALTER TABLE escrowmq_state_transactions RENAME TO moved")
        assert compared.round().differences_held == 1
        assert compared.report()[0].state_store == "state_store_away"
        assert compared.found() == {(FindingName.STATE_STORE_LACKS, 0)}


def test_a_full_open_set_leaves_the_youngest_out_and_takes_them_when_there_is_room(
    compared: Compared,
) -> None:
    day = Day(compared.address)
    names = [f"open-{number}" for number in range(6)]
    for name in names:
        day.hold(name)
    compared.comparing = compared.make(open_requests=4)
    compared.round()
    (told,) = compared.report()
    assert (told.outcome, told.open_requests, told.left_out) == ("open_limit", 4, 2)
    # Nothing is known about those that were left out, so their decisions are no differences.
    day.commit(*names[4:])
    assert compared.round().differences_held == 0
    (told,) = compared.report()
    assert (told.outcome, told.decided_before) == ("open_limit", day.heads[names[0]])
    day.commit(*names[1:4])
    again = compared.round()
    assert (again.begun, again.differences_held) == (1, 0)
    (told,) = compared.report()
    assert (told.outcome, told.begun, told.left_out) == ("caught_up", "open_again", 0)


def test_a_round_that_is_behind_does_not_take_later_decisions_for_differences(
    compared: Compared,
) -> None:
    day = Day(compared.address)
    live(day, "first-")
    live(day, "second-")
    compared.comparing = compared.make(log_bytes=8_000)
    first = compared.round()
    assert (first.is_behind, first.differences_held) == (True, 0)
    assert compared.report()[0].outcome == "behind"
    summary = first
    while summary.is_behind:
        summary = compared.round()
        assert summary.differences_held == 0
    with NativeCalls(compared.address) as calls:
        (end,) = {calls.call(NativeCode.STATUS).header.log_end}
    assert compared.checkpoint().log_offset == end


def test_after_a_restore_a_damaged_checkpoint_or_lost_records_it_begins_anew(
    compared: Compared, tmp_path: Path
) -> None:
    day = Day(compared.address)
    live(day, "kept-")
    compared.broker.stop()
    shutil.copytree(tmp_path / "data", tmp_path / "backup")
    compared.broker.start()
    live(day, "lost-")
    assert compared.round().differences_held == 0

    # The broker's history goes back: what was compared beyond the fork is not its history.
    compared.broker.stop()
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(tmp_path / "backup", tmp_path / "data")
    compared.broker.start()
    live(day, "other-")
    assert compared.round().differences_held == 0
    assert compared.report()[0].begun == "history_forked"

    (path,) = (tmp_path / "checkpoints" / "comparison").glob("*.checkpoint")
    path.write_bytes(path.read_bytes()[:-1])
    assert compared.round().differences_held == 0
    assert compared.report()[0].begun == "checkpoint_damaged"

    # Retention deletes records that no round has read, and carries the undecided ones forward.
    live(day, "unread-")
    compared.broker.advance(ms=3 * HOUR_MS)
    compared.broker.stop()
    retain_all(tmp_path / "data", compared.broker.clock.now_ms())
    compared.broker.start()
    assert compared.round().differences_held == 0
    assert compared.report()[0].begun == "records_deleted"
    day.commit("kept-open")
    live(day, "after-")
    assert compared.round().differences_held == 0
    assert compared.report()[0].begun == ""
    assert day.heads["kept-open"] not in compared.checkpoint().open_rows["head"]
