"""Our consumer on a broker that is restored from a copy while the consumer runs."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from escrowmq import Consumer
from escrowmq.client.messages.messages import Received
from escrowmq.testing import InProcessBroker
from tests.spark.topics import row, send

WAIT_S = 30.0


def test_a_running_consumer_reads_all_messages_of_the_restored_history(tmp_path: Path) -> None:
    """The consumer does not wait at its old offset, where it would skip the new messages."""
    data, copied = tmp_path / "data", tmp_path / "copied"
    got: list[bytes] = []
    more = threading.Condition()

    def handle(message: Received) -> None:
        with more:
            got.append(message.body)
            more.notify_all()

    def wait_for(count: int) -> None:
        with more:
            assert more.wait_for(lambda: len(got) >= count, WAIT_S), got

    with InProcessBroker(data=data, queue_count=1) as broker:
        broker.create_topic("orders")
        send(broker, row(b"a"))
        shutil.copytree(data, copied)
        (copied / "lock").unlink(missing_ok=True)
        consumer = Consumer(broker.address, "shop")
        consumer.subscribe("orders")(handle)
        with consumer:
            send(broker, row(b"old-b"), row(b"old-c"))
            wait_for(3)
            broker.stop()
            shutil.rmtree(data)
            shutil.copytree(copied, data)
            broker.start()
            send(broker, *(row(b"new-%d" % number) for number in range(4)))
            wait_for(7)
        assert got == [b"a", b"old-b", b"old-c", b"new-0", b"new-1", b"new-2", b"new-3"]
        assert broker.lag("orders", "shop") == 0
