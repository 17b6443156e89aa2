"""The half of ``escrowmq demo`` that dies: it holds orders, decides them, and kills itself.

What is durable it acknowledges on its standard output, one line each, after the flush, as a broker
would reply to its producers.  Its end is a real SIGKILL, in the middle of a write to the log.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from escrowmq.model.clock import SystemClock
from escrowmq.model.message import Message
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk import OsDisk
from escrowmq.store.frames import FRAME_BYTES_MAX
from escrowmq.store.lock import DirectoryLock
from escrowmq.store.recovery import open_store
from escrowmq.store.store import Store
from escrowmq.transaction.commands import End, Held, Prepare
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import Resolution

GROUP = "checkout"
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
BATCH = 50
"""Commands that share one flush."""

#: An order of three messages tells three parties; the others tell one.
TOPICS = ("orders-paid", "invoices", "shipping")
QUEUES = 4


def parts(order: int) -> int:
    """How many messages an order sends."""
    return 3 if order % 50 == 0 else 1


def fate(order: int) -> Resolution | None:
    """What the shop's database says of an order; None while the shop has not told us."""
    return {7: Resolution.ROLLBACK, 8: None, 9: None}.get(order % 10, Resolution.COMMIT)


def key(order: int) -> str:
    """The name of an order: its transaction id, and the key of its messages."""
    return f"order-{order:06}"


def messages(order: int) -> tuple[Message, ...]:
    """The messages of an order."""
    return tuple(
        Message(
            topic=topic,
            queue_id=order % QUEUES,
            body=f"{key(order)} is paid".encode(),
            properties=f"KEYS\x01{key(order)}\x02".encode(),
            keys=(key(order),),
        )
        for topic in TOPICS[: parts(order)]
    )


def die_while_writing(store: Store) -> NoReturn:
    """Hand only the first part of the gathered frames to the system, and kill this process."""
    log = store.log
    data = b""
    while log.written + len(data) < log.end:
        data += log.read(log.written + len(data), FRAME_BYTES_MAX)
    segment = log.segments[-1]
    segment.file.write_at(log.written - segment.start, data[: len(data) * 5 // 8])
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives SIGKILL")


def acknowledge(lines: list[str]) -> None:
    """Tell it to who waits; called only after the flush."""
    os.write(sys.stdout.fileno(), "".join(f"{line}\n" for line in lines).encode())


def hold(store: Store, orders: range, clock: SystemClock) -> dict[int, int]:
    """Hold the messages of these orders; returns where each one's first half message is."""
    held = {}
    for start in range(orders.start, orders.stop, BATCH):
        lines = []
        for order in orders[start : start + BATCH]:
            command = Prepare(group=GROUP, transaction_id=key(order), messages=messages(order))
            reply = store.execute(command, clock.now_ms()).reply
            assert isinstance(reply, Held)
            held[order] = reply.half_offset
            lines.append(f"held {order}")
        store.sync()
        acknowledge(lines)
    return held


def decide(store: Store, held: dict[int, int], clock: SystemClock) -> None:
    """Commit and roll back, and die two thirds through."""
    decided = [(order, known) for order in held if (known := fate(order)) is not None]
    for start in range(0, len(decided), BATCH):
        batch = decided[start : start + BATCH]
        acknowledge([f"sent {order}" for order, _ in batch])
        for order, resolution in batch:
            command = End(half_offset=held[order], resolution=resolution, by=GROUP)
            assert store.execute(command, clock.now_ms()).refused is None
        if start + BATCH > len(decided) * 2 // 3:
            die_while_writing(store)
        store.sync()
        acknowledge([f"{resolution} {order}" for order, resolution in batch])


def main(data: Path, orders: int) -> None:
    """Write until the end."""
    clock = SystemClock()
    with DirectoryLock(data):
        store, _ = open_store(OsDisk(data / "store"), StoreConfig(), CheckPolicy(), HOST)
        held = hold(store, range(orders), clock)
        decide(store, held, clock)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
