from __future__ import annotations

import pytest

from escrowmq.client.consumer.sharing import QueueProgress, share


@pytest.mark.parametrize(
    ("queues", "members", "parts"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        # As in RocketMQ's clients, the first members get one queue more.
        (5, 3, [[0, 1], [2, 3], [4]]),
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        # With more members than queues, some members get none.
        (2, 3, [[0], [1], []]),
        (0, 2, [[], []]),
    ],
)
def test_queues_are_shared_evenly(queues: int, members: int, parts: list[list[int]]) -> None:
    names = [f"client-{number}" for number in range(members)]
    assert [share(range(queues), names, name) for name in names] == parts


def test_an_unknown_member_takes_no_queue() -> None:
    assert share(range(4), ["another"], "me") == []


def test_the_first_message_that_is_open_is_where_a_restart_goes_on() -> None:
    progress = QueueProgress(5)
    assert progress.committed == 5
    for offset in (5, 6, 8):
        progress.take(offset)
    progress.next_offset = 9
    progress.finish(6)
    assert (progress.committed, progress.open) == (5, 2)
    progress.finish(5)
    assert progress.committed == 8
    progress.finish(8)
    assert (progress.committed, progress.open) == (9, 0)


def test_a_queue_that_was_sent_back_forgets_what_was_open() -> None:
    progress = QueueProgress(8)
    progress.take(8)
    progress.go_on(9)
    assert progress.committed == 8
    progress.go_on(3)
    for offset in (3, 4):
        progress.take(offset)
    progress.go_on(5)
    assert (progress.committed, progress.open) == (3, 2)
    # The handler of an old message ends late, and no longer changes the progress.
    progress.finish(8)
    assert (progress.committed, progress.open) == (3, 2)
