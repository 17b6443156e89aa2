"""The demo's comparison with XA, on a real broker and a real PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from escrowmq.demo import xa
from escrowmq.demo.figures import OnPostgres
from escrowmq.testing import InProcessBroker

RUN_S_MAX = 300


def test_both_ways_end_with_four_databases_that_agree(tmp_path: Path) -> None:
    topics = ("order-paid", "order-paid-slowly")
    with InProcessBroker() as broker:
        for topic in topics:
            broker.create_topic(topic)
        task = xa.XaTask(
            name_server=broker.address,
            topic=topics[0],
            slow_topic=topics[1],
            folder=str(tmp_path),
            orders=100,
            threads=2,
            result=str(tmp_path / "xa.json"),
            parent=os.getpid(),
        )
        words = [sys.executable, "-m", "escrowmq.demo.xa", msgspec.json.encode(task).decode()]
        log = tmp_path / "log"
        # It ends with us, because the other end of its standard input stays open.
        with (
            log.open("wb") as errors,
            subprocess.Popen(words, stdin=subprocess.PIPE, stderr=errors) as process,
        ):
            try:
                code = process.wait(RUN_S_MAX)
            finally:
                process.terminate()
    assert code == 0, log.read_text(encoding="utf-8")
    found = msgspec.json.decode((tmp_path / "xa.json").read_bytes(), type=OnPostgres)
    for one, orders in (
        (found.ours, 100),
        (found.xa, 100),
        (found.slow_ours, 25),
        (found.slow_xa, 25),
    ):
        assert one.orders == orders
        assert one.do_agree
        assert one.lock_ms_an_order > 0
    # Under XA, the orders' locks are held while the slow service works; with messages they are not.
    assert found.slow_xa.orders_lock_ms_median > found.slow_ms
    decisions = (tmp_path / "coordinator.log").read_text(encoding="utf-8").splitlines()
    assert len(decisions) == 125
