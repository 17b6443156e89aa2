"""A broker's day with every kind of event that an audit must understand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.message.properties import format_properties
from escrowmq.protocol.native.headers import ByHeader, HoldHeader
from escrowmq.protocol.native.operator_headers import ByHandHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import (
    AttemptRow,
    DecisionRow,
    SentRow,
    VerdictRow,
)
from escrowmq.protocol.native.sink_headers import DecideBatchHeader


@dataclass
class Day:
    """Sends requests to a broker, and remembers the half offsets."""

    address: str
    topic: str = "orders"
    #: Transaction name -> its first half offset.
    heads: dict[str, int] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _batches: int = 0

    def sent(
        self,
        body: bytes = b"body",
        *,
        key: str = "",
        queue_id: int = 0,
        delay_s: int = 0,
        **more: str,
    ) -> SentRow:
        """Make a message; ``more`` are properties, such as TAGS."""
        properties = {"KEYS": key, **more} if key else {**more}
        if delay_s:
            properties["TIMER_DELAY_SEC"] = str(delay_s)
        return SentRow(
            topic=self.topic,
            queue_id=queue_id,
            body=body,
            properties=format_properties(properties).decode(),
            flag=0,
            sys_flag=0,
            born_at_ms=1,
        )

    def hold(
        self,
        name: str,
        rows: Sequence[SentRow] = (),
        *,
        ledger: str = "",
        group: str = "pay",
        is_bulk: bool = False,
    ) -> int:
        """Send the next request of this transaction; return its first half offset."""
        number = self._numbers.get(name, 0)
        self._numbers[name] = number + 1
        header = HoldHeader(
            producer_group=group,
            transaction_id=name,
            number=number,
            ledger=ledger,
            is_bulk=is_bulk,
        )
        with NativeCalls(self.address) as calls:
            answer = calls.call(NativeCode.HOLD_HALVES, header, rows or (self.sent(key=name),))
        first: int = answer.header.half_offset
        self.heads.setdefault(name, first)
        return first

    def decide(self, resolution: str, *names: str) -> None:
        """Commit or roll back."""
        rows = [
            DecisionRow(
                half_offset=self.heads[name],
                resolution=resolution,
                producer_group=None,
                log_offset=None,
            )
            for name in names
        ]
        with NativeCalls(self.address) as calls:
            answer = calls.call(NativeCode.DECIDE_MANY, ByHeader(by="somebody"), rows)
        assert all(row.decided for row in answer.rows), answer.rows

    def commit(self, *names: str) -> None:
        """Commit."""
        self.decide("commit", *names)

    def roll_back(self, *names: str) -> None:
        """Roll back."""
        self.decide("rollback", *names)

    def park(self, name: str) -> None:
        """Park, as the pipeline does."""
        verdict = VerdictRow(
            half_offset=self.heads[name], verdict="park", state=0, checks_sent=0, reason="by hand"
        )
        with NativeCalls(self.address) as calls:
            answer = calls.call(NativeCode.OBEY_VERDICTS, ByHeader(by="pipeline"), [verdict])
        assert answer.rows[0].outcome == "parked"

    def resume(self, name: str) -> None:
        """Resume."""
        with NativeCalls(self.address) as calls:
            header = ByHandHeader(half_offset=self.heads[name], by="somebody")
            calls.call(NativeCode.RESUME, header)

    def write_batch(self, app: str, *attempts: tuple[str, int]) -> None:
        """Write a Spark sink's next batch: each attempt in requests of three messages."""
        claims = []
        self._batches += 1
        for name, messages in attempts:
            for at in range(0, messages, 3):
                some = [self.sent(queue_id=at % 2)] * min(3, messages - at)
                self.hold(name, some, group=f"%SINK%{app}", is_bulk=True)
            claims.append(
                AttemptRow(
                    transaction_id=name, last_number=self._numbers[name] - 1, messages=messages
                )
            )
        header = DecideBatchHeader(
            app_id=app, query_id="query", batch_number=self._batches, by="spark driver"
        )
        with NativeCalls(self.address) as calls:
            answer = calls.call(NativeCode.DECIDE_BATCH, header, claims)
        assert answer.header.outcome == "decided"

    def send(self, *bodies: bytes) -> None:
        """Send ordinary messages."""
        with NativeCalls(self.address) as calls:
            calls.call(NativeCode.SEND_MANY, None, [self.sent(body) for body in bodies])


def live(day: Day, prefix: str = "") -> None:
    """Make transactions of every kind."""
    names = [f"{prefix}{number}" for number in range(12)]
    for name in names:
        day.hold(name)
    day.commit(*names[:7])
    day.roll_back(*names[7:10])
    # Several messages in several requests, interleaved with others.
    for name in ("many", "other", "open"):
        day.hold(prefix + name, [day.sent(queue_id=at % 3) for at in range(5)])
        day.send(b"ordinary")
    for name in ("many", "other", "open"):
        day.hold(prefix + name, [day.sent(), day.sent(queue_id=1)])
    day.commit(prefix + "many")
    day.roll_back(prefix + "other")
    for name in ("parked", "resumed", "parked-committed"):
        day.hold(prefix + name)
        day.park(prefix + name)
    day.resume(prefix + "resumed")
    day.commit(prefix + "parked-committed")
    day.write_batch("app", (prefix + "attempt-1", 7), (prefix + "attempt-2", 4))
    day.hold(prefix + "orphan", [day.sent()] * 2, group="%SINK%app", is_bulk=True)
    day.roll_back(prefix + "orphan")
