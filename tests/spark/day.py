"""A broker's day for tests of views: transactions with different outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.headers import ByHeader, HoldHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import DecisionRow, SentRow


def message(body: bytes = b"body", topic: str = "orders") -> SentRow:
    """Make a message for the first queue."""
    return SentRow(
        topic=topic, queue_id=0, body=body, properties="", flag=0, sys_flag=0, born_at_ms=1
    )


def hold(
    calls: NativeCalls,
    transaction_id: str,
    rows: Sequence[SentRow] = (),
    *,
    number: int = 0,
    ledger: str = "",
) -> int:
    """Hold half messages of one transaction; return its first half offset."""
    header = HoldHeader(
        producer_group="pay", transaction_id=transaction_id, number=number, ledger=ledger
    )
    answer = calls.call(NativeCode.HOLD_HALVES, header, rows or (message(),))
    half_offset: int = answer.rows[0].half_offset
    return half_offset


def decide(calls: NativeCalls, resolution: str, *half_offsets: int) -> None:
    """Commit or roll back."""
    rows = [
        DecisionRow(half_offset=one, resolution=resolution, producer_group=None, log_offset=None)
        for one in half_offsets
    ]
    answer = calls.call(NativeCode.DECIDE_MANY, ByHeader(by="somebody"), rows)
    assert all(row.decided for row in answer.rows)


def live(broker: str, *, named: str = "tx") -> None:
    """Make ten transactions: four committed, three rolled back, three undecided."""
    with NativeCalls(broker) as calls:
        halves = [hold(calls, f"{named}-{number}") for number in range(9)]
        halves.append(hold(calls, f"{named}-9", [message(), message()], ledger="uuid"))
        decide(calls, "commit", *halves[:4])
        decide(calls, "rollback", *halves[4:7])
