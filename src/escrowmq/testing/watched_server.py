"""The real broker with hooks: a test can wait for work that the broker does in the background."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from escrowmq.broker.server import Server
from escrowmq.client.messages.messages import Received, received
from escrowmq.protocol.message.stored_message import decode
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.headers import read_header
from escrowmq.protocol.remoting.send_headers import EndTransactionHeader
from escrowmq.store.reading.reader import ReadStatus
from escrowmq.transaction.commands import Release

if TYPE_CHECKING:
    from collections.abc import Collection

    from escrowmq.broker.net.connection import ClientConnection
    from escrowmq.protocol.remoting.frames import RemotingFrame

PULLED_MAX = 1_000
PULLED_BYTES_MAX = 16 * 1024 * 1024


class WatchedServer(Server):
    """A server whose background work a test can await. Use it from one event loop only."""

    def __init__(self, *positional: Any, **settings: Any) -> None:  # noqa: ANN401 - as Server has them
        super().__init__(*positional, **settings)
        #: Half offsets of back-checks that producers have answered.
        self.answered: set[int] = set()
        self._has_answered = asyncio.Event()

    # Overrides.

    def handle(self, connection: ClientConnection, frame: RemotingFrame) -> None:
        """Handle a frame; if it answers a back-check, record that."""
        super().handle(connection, frame)
        if frame.code == RequestCode.END_TRANSACTION and not frame.is_response:
            header = read_header(EndTransactionHeader, frame.ext)
            if header.is_check_answer:
                self.answered.add(header.half_offset)
                self._has_answered.set()

    async def _sweep(self) -> None:
        """Do not expire clients: after a clock jump, every client would look silent."""

    # Calls that a test can await.

    async def catch_up(self) -> None:
        """Do all work that has come due."""
        await self._look_at_clock()
        await self.broker.releasing.release_due()
        await self._retain()

    async def until_published(self) -> None:
        """Wait until all committed messages are visible; a large batch takes several turns."""
        while not self.broker.store.dispatcher.is_idle:  # noqa: ASYNC110 - each turn does some of it
            await asyncio.sleep(0)

    async def until_answered(self, heads: Collection[int]) -> None:
        """Wait until producers have answered for these heads, and the answers are durable."""
        while not self.answered.issuperset(heads):
            self._has_answered.clear()
            await self._has_answered.wait()
        # Wait for a command without effect that is queued behind the answers.
        await self.broker.writer.submit(Release(half_offsets=()))

    def visible(self, topic: str) -> list[Received]:
        """Return the visible messages of a topic, in the order in which they became visible."""
        broker = self.broker
        found = broker.topics.get(topic)
        messages = [
            received(decode(record), broker.identity.name)
            for queue_id in range(found.read_queue_count if found else 0)
            for record in self._records(topic, queue_id)
        ]
        return sorted(messages, key=lambda one: (one.visible_at_ms, one.log_offset))

    def lag(self, topic: str, group: str) -> int:
        """Return the number of visible messages of a topic that a group has not acknowledged."""
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
            if pulled.status is not ReadStatus.FOUND:
                return records
            records += pulled.messages
            offset = pulled.next_offset
