"""Prints durable transactions per second on the table, with this or an older version.

    PYTHONPATH=CHECKOUT/src python bench/figures/state_base.py EMPTY_DIRECTORY

It imports only what older versions have, too.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from escrowmq.broker.write.writer import Writer
from escrowmq.model.clock import SystemClock
from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.store import Store
from escrowmq.transaction.commands import End, HoldReply, Prepare
from escrowmq.transaction.policy import CheckPolicy

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
IN_FLIGHT = 256
TRANSACTIONS = 16_000
PROPERTIES = "UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01orders\x02WAIT\x01true\x02"


async def transactions_per_second(store: Store) -> float:
    """Hold and commit transactions, both acknowledged."""
    writer = Writer(store, SystemClock())
    body = os.urandom(300)
    numbers = iter(range(TRANSACTIONS))

    async def client() -> None:
        for number in numbers:
            key = f"7F000001000018B4AAC2{number:012X}"
            message = SentMessage(
                topic="order-paid",
                queue_id=number % 4,
                body=body,
                properties=PROPERTIES.format(key=key).encode(),
                unique_key=key,
            )
            prepare = Prepare(group="orders", transaction_id=key, messages=(message,))
            reply = (await writer.submit(prepare)).reply
            assert isinstance(reply, HoldReply)
            ending = End(half_offset=reply.half_offset, resolution=Resolution.COMMIT, by="bench")
            assert (await writer.submit(ending)).refused is None

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(client())
    took = time.perf_counter() - started
    await writer.close()
    return TRANSACTIONS / took


def main() -> None:
    """Open a store in the given directory, and measure."""
    store, _ = open_store(OsDisk(Path(sys.argv[1])), StoreConfig(), CheckPolicy(), HOST)
    print(asyncio.run(transactions_per_second(store)))


if __name__ == "__main__":
    main()
