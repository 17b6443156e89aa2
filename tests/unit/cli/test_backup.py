"""Backups of running brokers, brokers under load and stopped brokers."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from escrowmq.cli.main import main
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.headers import (
    ByHeader,
    HoldManyHeader,
    ListQueuesHeader,
    ReadMessagesHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import DecisionRow, SentInRow
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.repair import inspect
from escrowmq.testing import InProcessBroker
from tests.unit.cli.test_serve import serving

Run = Callable[..., dict[str, Any]]
TOPICS = ("orders", "invoices")
#: Small limits, so that segments and checkpoints begin and end during a backup.
SMALL = (
    *("--set", "store.segment_bytes_max=65536"),
    *("--set", "store.checkpoint_bytes=16384"),
    *("--set", "store.chunk_rows=64"),
)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
        with pytest.raises(SystemExit) as left:
            main([*map(str, arguments), "-o", "json"])
        told = capsys.readouterr()
        assert left.value.code == code, told
        done: dict[str, Any] = json.loads(told.out) if code == 0 else {"error": told.err}
        return done

    return run


class Load:
    """Load of transactions with several messages in two topics, and their acknowledged outcomes."""

    def __init__(self, address: str, seed: int) -> None:
        self._address = address
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._grown = threading.Condition()
        #: Message count and acknowledged outcome of each transaction.
        self.sizes: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, args=(seed,))

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def until(self, count: int) -> None:
        """Wait until `count` transactions have ended."""
        with self._grown:
            assert self._grown.wait_for(lambda: len(self.ended) >= count, timeout=60)

    def so_far(self) -> dict[str, str]:
        """Return the acknowledged outcomes."""
        with self._grown:
            return dict(self.ended)

    def _run(self, seed: int) -> None:
        with NativeCalls(self._address) as calls:
            number = 0
            while not self._stop.is_set():
                number += 1
                self.portion(calls, f"{seed}-{number}")

    def portion(self, calls: NativeCalls, name: str) -> None:
        sizes = {f"{name}-{at}": self._random.randint(1, 4) for at in range(8)}
        self.sizes |= sizes
        rows = [_row(one, at) for one, size in sizes.items() for at in range(size)]
        held = calls.call(NativeCode.HOLD_MANY, HoldManyHeader(producer_group="shop"), rows).rows
        # One transaction in eight stays undecided.
        words = [self._random.choice(("commit", "rollback")) for _ in held[1:]]
        decisions = [
            DecisionRow(
                half_offset=one.half_offset, resolution=word, producer_group=None, log_offset=None
            )
            for one, word in zip(held[1:], words, strict=True)
        ]
        ends = calls.call(NativeCode.DECIDE_MANY, ByHeader(by="test"), decisions).rows
        with self._grown:
            for one, end in zip(held[1:], ends, strict=True):
                self.ended[one.transaction_id] = end.decided
            self._grown.notify_all()


def _row(transaction_id: str, at: int) -> SentInRow:
    return SentInRow(
        transaction_id=transaction_id,
        topic=TOPICS[at % 2],
        queue_id=-1,
        body=transaction_id.encode(),
        properties="",
        flag=0,
        sys_flag=0,
        born_at_ms=0,
    )


def visible(broker: InProcessBroker) -> dict[str, int]:
    """Count the messages of each transaction that consumers can see."""
    counts: dict[str, int] = {}
    with NativeCalls(broker.broker_address) as calls:
        for topic in TOPICS:
            for queue in list(calls.rows(NativeCode.LIST_QUEUES, ListQueuesHeader(topic=topic))):
                asked = ReadMessagesHeader(topic=topic, queue_id=queue.queue_id)
                for row in calls.rows(NativeCode.READ_MESSAGES, asked):
                    name = row.body.decode()
                    counts[name] = counts.get(name, 0) + 1
    return counts


def assert_consistent(data: Path, load_sizes: dict[str, int], ended: dict[str, str]) -> None:
    """Check a restored store; ``ended`` was acknowledged before the backup began."""
    report = inspect.check(OsDisk(data / "store", read_only=True))
    assert not report.is_damaged, report
    with InProcessBroker(data=data) as broker:
        seen = visible(broker)
    for transaction_id, end in ended.items():
        expected = load_sizes[transaction_id] if end == "committed" else 0
        assert seen.get(transaction_id, 0) == expected, transaction_id
    for transaction_id, count in seen.items():
        assert count == load_sizes[transaction_id], transaction_id
    assert not inspect.check(OsDisk(data / "store", read_only=True)).is_damaged


def test_backups_under_load_restore_to_a_consistent_state(tmp_path: Path, run: Run) -> None:
    chosen = random.Random(7)
    with serving(tmp_path / "data", *SMALL) as (_, address):
        load = Load(address, seed=1)
        more = Load(address, seed=2)
        taken: list[tuple[Path, dict[str, str]]] = []
        with load.running(), more.running():
            for number in range(8):
                # Start each backup after a random number of further transactions.
                wanted = len(load.ended) + chosen.randint(1, 300)
                while len(load.ended) < wanted and load._thread.is_alive():
                    load._stop.wait(0.001)
                before = load.so_far() | more.so_far()
                done = run("backup", tmp_path / f"backup-{number}", "--broker", address)
                assert done["bytes"] > 0
                taken.append((tmp_path / f"backup-{number}", before))
        sizes = load.sizes | more.sizes
    assert len(taken[-1][1]) > 100
    for place, before in taken:
        data = place.with_suffix(".data")
        run("restore", place, "--data-dir", data)
        assert_consistent(data, sizes, before)


def test_a_backup_of_a_stopped_broker_needs_its_directory_alone(tmp_path: Path, run: Run) -> None:
    with InProcessBroker(data=tmp_path / "data") as broker:
        with NativeCalls(broker.broker_address) as calls:
            Load(broker.broker_address, 1).portion(calls, "a")
            expected = visible(broker)
        refused = run("backup", tmp_path / "b", "--data-dir", tmp_path / "data", code=5)
        assert "data_directory_locked" in refused["error"]
    run("backup", tmp_path / "b", "--data-dir", tmp_path / "data")
    run("restore", tmp_path / "b", "--data-dir", tmp_path / "again")
    with InProcessBroker(data=tmp_path / "again") as broker:
        assert visible(broker) == expected


def test_no_backup_goes_into_the_store_which_would_not_open_with_it(
    tmp_path: Path, run: Run
) -> None:
    data = tmp_path / "data"
    (tmp_path / "link").symlink_to(data / "store")
    scheduled = f"backup.directory={tmp_path}/link/backups"
    told = run("serve", "--data-dir", data, "--port", 0, "--set", scheduled, code=2)
    assert "backup_inside_store" in told["error"]
    with InProcessBroker(data=data) as broker:
        for place in (data / "store/backup", tmp_path / "link/backup"):
            told = run("backup", place, "--broker", broker.address, code=2)
            assert "backup_inside_store" in told["error"]
    run("backup", data / "store/backup", "--data-dir", data, code=2)
    with InProcessBroker(data=data):
        pass


def test_topics_and_offsets_come_back(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path / "data") as broker:
        at = ("--broker", broker.address)
        for words in ("topic create kept --queues 1", "message send x --topic kept"):
            with pytest.raises(SystemExit):
                main([*words.split(), *at])
        with pytest.raises(SystemExit):
            main([*["group", "reset-offset", "readers", "--topic", "kept", "--to", "latest"], *at])
    with InProcessBroker(data=tmp_path / "data") as broker:
        capture = tmp_path / "backup"
        with pytest.raises(SystemExit) as left:
            main(["backup", str(capture), "--broker", broker.address])
        assert left.value.code == 0
    with pytest.raises(SystemExit) as left:
        main(["restore", str(capture), "--data-dir", str(tmp_path / "new")])
    assert left.value.code == 0
    with InProcessBroker(data=tmp_path / "new") as broker:
        assert broker.lag("kept", "readers") == 0
        assert [message.body for message in broker.messages("kept")] == [b"x"]


@pytest.fixture
def backed_up(tmp_path: Path, run: Run) -> Path:
    with InProcessBroker(data=tmp_path / "data") as broker:
        run("backup", tmp_path / "backup", "--broker", broker.address)
    return tmp_path / "backup"


def test_a_dry_run_looks_and_writes_nothing(
    tmp_path: Path, backed_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with InProcessBroker(data=tmp_path / "data") as broker, pytest.raises(SystemExit):
        main(["backup", str(tmp_path / "no"), "--broker", broker.address, "--dry-run"])
    assert "would copy" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["restore", str(backed_up), "--data-dir", str(tmp_path / "no"), "--dry-run"])
    assert "would restore" in capsys.readouterr().out
    assert not (tmp_path / "no").exists()


def test_nothing_is_written_over(tmp_path: Path, backed_up: Path, run: Run) -> None:
    with InProcessBroker(data=tmp_path / "data") as broker:
        refused = run("backup", backed_up, "--broker", broker.address, code=5)
    assert "target_not_empty" in refused["error"]
    refused = run("restore", backed_up, "--data-dir", tmp_path / "data", code=5)
    assert "target_not_empty" in refused["error"]


def test_a_damaged_backup_leaves_no_data_directory(
    tmp_path: Path, backed_up: Path, run: Run
) -> None:
    (backed_up / "meta.db").write_bytes(b"other")
    refused = run("restore", backed_up, "--data-dir", tmp_path / "new", code=5)
    assert "backup_damaged" in refused["error"]
    assert [path.name for path in tmp_path.iterdir() if "new" in path.name] == []
    run("restore", tmp_path, "--data-dir", tmp_path / "new", code=5)


def test_the_files_of_a_killed_restore_are_named(tmp_path: Path, backed_up: Path, run: Run) -> None:
    (tmp_path / "new.restoring").mkdir()
    refused = run("restore", backed_up, "--data-dir", tmp_path / "new", code=5)
    assert "new.restoring" in refused["error"]


def test_a_damaged_store_makes_no_backup(tmp_path: Path, run: Run) -> None:
    with InProcessBroker(data=tmp_path / "data") as broker, NativeCalls(broker.address) as calls:
        for name in "abc":
            Load(broker.address, 1).portion(calls, name)
    (segment, *_) = sorted((tmp_path / "data/store/commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    data[50] ^= 1
    segment.write_bytes(data)
    refused = run("backup", tmp_path / "b", "--data-dir", tmp_path / "data", code=5)
    assert "store_damaged" in refused["error"]
    assert not (tmp_path / "b/manifest.json").exists()


def test_no_store_and_no_broker_are_told(tmp_path: Path, run: Run) -> None:
    refused = run("backup", tmp_path / "b", "--data-dir", tmp_path / "none", code=5)
    assert "store_missing" in refused["error"]
    refused = run("backup", tmp_path / "b", "--broker", "127.0.0.1:1", code=3)
    assert "broker_unreachable" in refused["error"]


def test_a_broker_on_another_machine_is_told(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with InProcessBroker(data=tmp_path / "data") as broker:
        monkeypatch.setattr(Path, "is_file", lambda _: False)
        refused = run("backup", tmp_path / "b", "--broker", broker.address, code=2)
    assert "broker_elsewhere" in refused["error"]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_refused_backup_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "backup"
    with InProcessBroker(data=data) as broker:
        before = names(tmp_path)
        run("backup", target, "--data-dir", data, code=5)
        run("backup", data, "--broker", broker.address, code=5)
        assert names(tmp_path) == before
    (segment,) = (data / "store" / "commitlog").iterdir()
    content = bytearray(segment.read_bytes())
    content[40] ^= 0xFF
    segment.write_bytes(content)
    before = names(tmp_path)
    assert "store_damaged" in run("backup", target, "--data-dir", data, code=5)["error"]
    assert names(tmp_path) == before
    target.mkdir()
    run("backup", target, "--data-dir", data, code=5)
    assert names(target) == []


def test_a_directory_without_a_store_gets_no_lock(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data" / "store").mkdir(parents=True)
    run("backup", tmp_path / "backup", "--data-dir", tmp_path / "data", code=5)
    assert names(tmp_path) == ["data", "data/store"]


def test_a_backup_and_a_dry_run_add_nothing_to_the_data_directory(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with InProcessBroker(data=data) as broker:
        before = names(data)
        run("backup", tmp_path / "none", "--broker", broker.address, "--dry-run")
        run("backup", tmp_path / "one", "--broker", broker.address)
        assert names(data) == before
    before = names(data)
    run("backup", tmp_path / "two", "--data-dir", data)
    assert names(data) == before
    assert not (tmp_path / "none").exists()
