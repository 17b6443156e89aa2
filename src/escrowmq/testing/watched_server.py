"""The real broker, watched: a test can wait for what would otherwise happen at some time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from escrowmq.broker.server import Server
from escrowmq.client.messages import Received, received
from escrowmq.protocol.codes import RequestCode
from escrowmq.protocol.headers import read_header
from escrowmq.protocol.send_headers import EndTransactionHeader
from escrowmq.protocol.stored_message import decode
from escrowmq.store.reader import Status
from escrowmq.transaction.commands import Release

if TYPE_CHECKING:
    from collections.abc import Collection

    from escrowmq.broker.connection import Connection
    from escrowmq.protocol.remoting import Frame

PULLED_MAX = 1_000
PULLED_BYTES_MAX = 16 * 1024 * 1024


class WatchedServer(Server):
    """Belongs to one event loop."""

    def __init__(self, *positional: Any, **settings: Any) -> None:  # noqa: ANN401 - as Server has them
        super().__init__(*positional, **settings)
        #: Half offsets that producers were asked about and have answered.
        self.answered: set[int] = set()
        self._has_answered = asyncio.Event()

    # What is different.

    def handle(self, connection: Connection, frame: Frame) -> None:
        """Somebody asks, or answers a back-check."""
        super().handle(connection, frame)
        if frame.code == RequestCode.END_TRANSACTION and not frame.is_response:
            header = read_header(EndTransactionHeader, frame.ext)
            if header.is_check_answer:
                self.answered.add(header.half_offset)
                self._has_answered.set()

    async def _sweep(self) -> None:
        """Forget nobody: a clock that jumps would make everybody look silent."""

    # What a test can wait for.

    async def catch_up(self) -> None:
        """Do what has become due."""
        await self._look_at_clock()
        await self._release()
        await self._retain()

    async def until_published(self) -> None:
        """Return when everything that was committed can be seen: a large batch takes turns."""
        while not self.broker.store.dispatcher.is_idle:  # noqa: ASYNC110 - each turn does some of it
            await asyncio.sleep(0)

    async def until_answered(self, heads: Collection[int]) -> None:
        """Return when producers have answered for these, and the answers are durable."""
        while not self.answered.issuperset(heads):
            self._has_answered.clear()
            await self._has_answered.wait()
        # A command without effect, behind theirs.
        await self.broker.writer.submit(Release(half_offsets=()))

    def visible(self, topic: str) -> list[Received]:
        """What consumers of a topic can see, in the order in which it became visible."""
        broker = self.broker
        found = broker.topics.get(topic)
        messages = [
            received(decode(record), broker.config.name)
            for queue_id in range(found.read_queue_count if found else 0)
            for record in self._records(topic, queue_id)
        ]
        return sorted(messages, key=lambda one: (one.visible_at_ms, one.log_offset))

    def lag(self, topic: str, group: str) -> int:
        """How many visible messages of a topic a group has not acknowledged."""
        bounds = self.broker.queues.bounds()
        offsets = self.broker.meta.offsets
        return sum(
            end - max(offsets.get((group, topic, queue_id), start), start)
            for (name, queue_id), (start, end) in bounds.items()
            if name == topic
        )

    def _records(self, topic: str, queue_id: int) -> list[bytes]:
        queue = self.broker.reader.queue(topic, queue_id)
        offset = queue.start if queue else 0
        records: list[bytes] = []
        while True:
            pulled = self.broker.reader.pull(
                topic, queue_id, offset, count_max=PULLED_MAX, bytes_max=PULLED_BYTES_MAX
            )
            if pulled.status is not Status.FOUND:
                return records
            records += pulled.messages
            offset = pulled.next_offset
