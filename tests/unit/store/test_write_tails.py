"""A checkpoint writes queues to files, even very many."""

from __future__ import annotations

from escrowmq.store.queue.consume_queue import FILED_AT_ONCE, ConsumeQueue, write_tails
from escrowmq.store.queue.queue_files import OpenFiles
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.journal import FlushDirectory
from escrowmq.testing.survivors import nothing_survives
from escrowmq.transaction.records import NamedQueue
from tests.unit.store.test_consume_queue import add, file_all, made, numbered


def test_many_queues_are_filed_with_each_flush_that_one_needs() -> None:
    disk = FaultyDisk()
    disk.make_directory("consumequeue")
    files = OpenFiles(disk)
    names = [NamedQueue(one, "t", one) for one in range(FILED_AT_ONCE + 1)]
    queues = [ConsumeQueue(disk, files, named) for named in names]
    for queue in queues:
        add(queue, 0, numbered(0, 2))
    write_tails(disk, [tail for queue in queues if (tail := queue.tail()) is not None])
    after = disk.crash(nothing_survives)
    for queue in queues:
        again = ConsumeQueue(
            after, OpenFiles(after), NamedQueue(queue.queue_id, "t", queue.queue_id)
        )
        again.open(0, 2)
        assert again.entries(0, 9) == numbered(0, 2)


def test_a_directory_is_named_once_only_when_a_file_is_new() -> None:
    disk = FaultyDisk()
    disk.make_directory("consumequeue")
    queue = made(disk)
    add(queue, 0, numbered(0, 1))
    file_all(disk, queue)
    add(queue, 1, numbered(1, 1))
    names = named(disk)
    assert names == ["consumequeue"]
    file_all(disk, queue)
    assert named(disk) == names


def named(disk: FaultyDisk) -> list[str]:
    """Directories of queues whose names were flushed."""
    return [
        operation.path
        for operation in disk.journal
        if isinstance(operation, FlushDirectory) and operation.path.startswith("consumequeue")
    ]
