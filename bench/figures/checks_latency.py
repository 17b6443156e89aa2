"""The broker's latency at 30 % of its top load, beside 10,000 transactions that it settles."""

from __future__ import annotations

from itertools import count

import psycopg

from bench.figures.checks_speed import status, until
from bench.figures.common import scratch
from bench.figures.loaded_latency import load, report_ratios
from bench.figures.settle_fill import GROUP, answering, make_ledger, postgres
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.headers import HoldManyHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SentInRow
from tests.fuzz.served import Served, served

PART = 0.3
TOP_S = 5
MEASURED_S = 8
ROUNDS = 9
#: Half of them are looked up in a ledger, the others are asked about.
UNDECIDED = 10_000
#: They come due when the load begins.
CHECK_AFTER_MS = 1_000
ROWS = 2_500

_numbers = count()


def latency() -> None:
    """Report the median ratio of rounds that alternate between alone and beside."""
    with scratch() as path, postgres(path) as url:
        uuid = make_ledger(url, 0)
        settings = (f"transaction.check_after_ms={CHECK_AFTER_MS}", f"ledger.shop.url={url}")
        with served(path, *settings) as broker, answering(broker):
            load(broker, TOP_S, 0)
            top = load(broker, TOP_S, 0)["per_s"]
            pairs, settled = [], []
            for _ in range(ROUNDS):
                alone = load(broker, MEASURED_S, top * PART)
                hold(broker, url, uuid)
                pairs.append((alone, load(broker, MEASURED_S, top * PART)))
                settled.append(UNDECIDED - status(broker).undecided)
                until(lambda: not status(broker).undecided)
        report_ratios(
            "checks",
            pairs,
            wanted="p99 <= 1.3",
            rate_per_s=round(top * PART),
            settled_while_measured=settled,
        )


def hold(broker: Served, url: str, uuid: str) -> None:
    """Hold transactions that their producer leaves undecided; those of the ledger committed."""
    with NativeCalls(broker.address) as calls, psycopg.connect(url) as connection:
        for at in range(0, UNDECIDED, ROWS):
            ledger = uuid if at < UNDECIDED // 2 else ""
            rows = [sent(f"bench-{next(_numbers)}") for _ in range(ROWS)]
            allowed_ms = 60_000 if ledger else 0
            header = HoldManyHeader(producer_group=GROUP, ledger=ledger, allowed_ms=allowed_ms)
            calls.call(NativeCode.HOLD_MANY, header, rows)
            if ledger:
                with connection.cursor() as cursor:
                    cursor.executemany(
                        "INSERT INTO escrowmq_ledger VALUES (%s, %s, 'committed', 1)",
                        [(row.transaction_id, GROUP) for row in rows],
                    )


def sent(transaction_id: str) -> SentInRow:
    """Make a half message of 300 bytes."""
    return SentInRow(
        transaction_id=transaction_id,
        topic="order-paid",
        queue_id=0,
        body=b"x" * 300,
        properties="",
        flag=0,
        sys_flag=0,
        born_at_ms=1,
    )
