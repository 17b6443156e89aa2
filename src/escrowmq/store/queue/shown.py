"""Topics and queues as readers see them: only what is durable; the core is ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.store.queue.consume_queue import ConsumeQueue
from escrowmq.transaction.memory.names import forget_queue
from escrowmq.transaction.records import CatalogRecord, NamedQueue, TopicRemoved

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Disk
    from escrowmq.store.queue.queue_files import OpenFiles
    from escrowmq.transaction.core import Where
    from escrowmq.transaction.memory.catalog import Catalog
    from escrowmq.transaction.records import Record


class Shown:
    """Shows topics and queues to readers once they are durable."""

    def __init__(
        self, catalog: Catalog, queues: dict[int, ConsumeQueue], open_files: OpenFiles
    ) -> None:
        self._catalog = catalog
        #: By number, including those that are not durable yet.
        self._queues = queues
        self._open_files = open_files
        self._queues_of: dict[str, dict[int, ConsumeQueue]] = {}
        self._later: list[tuple[Record, Where]] = []
        #: Files of deleted queues.
        self.garbage: dict[str, None] = {}

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None if nothing was ever sent to it."""
        return self._queues_of.get(topic, {}).get(queue_id)

    def make(self, disk: Disk, named: NamedQueue, *, may_have_files: bool) -> None:
        """Make the queue unless it exists; readers do not see it yet."""
        if named.id not in self._queues:
            self._queues[named.id] = queue = ConsumeQueue(disk, self._open_files, named)
            queue.may_have_files = may_have_files

    def later(self, record: Record, where: Where) -> None:
        """Keep a record to be shown once it is durable."""
        self._later.append((record, where))

    def show(self) -> None:
        """Show the records that ``later`` has kept, which are durable now."""
        if not self._later:
            return
        shown, self._later = self._later, []
        for record, where in shown:
            if isinstance(record, NamedQueue):
                # None if the checkpoint under a replay already has the queue deleted.
                queue = self._queues.get(record.id)
                if queue is not None:
                    self._queues_of.setdefault(record.topic, {})[record.queue_id] = queue
                continue
            assert isinstance(record, CatalogRecord)
            self._catalog.apply(record, where.frame)
            if isinstance(record, TopicRemoved):
                for number in record.queues:
                    self._remove(number)

    def _remove(self, number: int) -> None:
        queue = self._queues.pop(number, None)
        if queue is None:
            return
        # A later queue of the same name is not shown yet, so the name still means this one.
        forget_queue(self._queues_of, queue.topic, queue.queue_id)
        if queue.may_have_files:
            paths = queue.paths()
            for file in self._open_files.release(paths):
                file.close()
            self.garbage.update(dict.fromkeys(paths))
