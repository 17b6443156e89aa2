"""A broker killed in the middle of a look-up: its child ends with it, and the next one decides."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.headers import HoldHeader, LogRangeHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SentRow
from tests.ledger.kill import READY
from tests.ledger.shops import GROUP, Shop, new_id
from tests.unit.supervise.family import children_of, is_gone

WITHIN_S = 30.0
PAUSE_S = 0.02
_pause = threading.Event()


@contextmanager
def serving_process(data: Path, url: str) -> Iterator[tuple[int, NativeCalls]]:
    """Run ``escrowmq serve`` with a ledger; yield its process id and a connection to it."""
    command = [sys.executable, "-m", "escrowmq.cli.main", "serve", "--data-dir", str(data)]
    command += ["--port", "0", "--name-port", "0", "--grpc-port", "-1"]
    command += ["--set", "transaction.check_after_ms=0"]
    environment = {**os.environ, "ESCROWMQ_LEDGER__SHOP__URL": url}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            ready = READY.match(process.stdout.readline())
            assert ready is not None
            with NativeCalls(ready[2]) as calls:
                yield process.pid, calls
        finally:
            process.kill()


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < until_s
        _pause.wait(PAUSE_S)


def hold(calls: NativeCalls, ledger: str, transaction_id: str) -> None:
    header = HoldHeader(
        producer_group=GROUP, transaction_id=transaction_id, number=0, ledger=ledger
    )
    calls.call(NativeCode.HOLD_HALVES, header, [SentRow("orders", 0, b"paid", "", 0, 0, 0)])


def reaches_its_ledger(calls: NativeCalls) -> bool:
    return [one.is_reachable for one in calls.call(NativeCode.LIST_LEDGERS).rows] == [True]


def decisions(calls: NativeCalls) -> list[tuple[int, str, str]]:
    events = calls.rows(NativeCode.LIST_EVENTS, LogRangeHeader())
    return [
        (one.head, one.event, one.by) for one in events if one.event in ("committed", "rolled_back")
    ]


@pytest.mark.parametrize("state", ["waits for the database", "is stopped"])
def test_the_look_up_process_of_a_killed_broker_ends_and_nothing_is_decided_twice(
    file_shop: Shop, tmp_path: Path, state: str
) -> None:
    ledger, ids = file_shop.ledger().uuid(), [new_id() for _ in range(3)]
    for one in ids:
        file_shop.run(f"INSERT INTO escrowmq_ledger VALUES ('{one}', '{GROUP}', 'committed', 1)")
    with closing(sqlite3.connect(file_shop.path, isolation_level=None)) as holder:
        with serving_process(tmp_path / "data", file_shop.url) as (broker, calls):
            wait_until(lambda: reaches_its_ledger(calls))
            holder.execute("BEGIN EXCLUSIVE")
            for one in ids:
                hold(calls, ledger, one)
            wait_until(lambda: "look_up_waits" in calls.call(NativeCode.STATUS).header.round_did)
            (child,) = children_of(broker)
            if state == "is stopped":
                os.kill(child, signal.SIGSTOP)
            os.kill(broker, signal.SIGKILL)
        if state == "is stopped":
            os.kill(child, signal.SIGCONT)
        assert is_gone(child)
    with serving_process(tmp_path / "data", file_shop.url) as (_, calls):
        wait_until(lambda: not calls.call(NativeCode.STATUS).header.undecided)
        expected = [(head, "committed", "broker") for head in range(len(ids))]
        assert sorted(decisions(calls)) == expected
