"""The writer for whoever cannot wait: it calls back."""

from __future__ import annotations

import pytest

from escrowmq.broker.config import WriterConfig
from escrowmq.broker.writer import Writer
from escrowmq.model.errors import Unavailable
from escrowmq.testing import FaultyDisk, ManualClock
from escrowmq.transaction.commands import Decision, Held, Settled
from tests.unit.broker.test_writer import commit, held, opened, prepare


async def test_who_cannot_wait_is_told_later_or_refused_when_there_is_no_room() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock(), WriterConfig(messages_max=2, inbox_max=3))
    told: list[Decision | BaseException] = []
    first = await held(writer, 0)
    for number in (1, 2):
        writer.put(prepare(number), told.append)
    with pytest.raises(Unavailable, match="inbox_full"):
        writer.put(prepare(3), told.append)
    writer.put(commit(first.half_offset), told.append)
    with pytest.raises(Unavailable, match="inbox_full"):
        writer.put(commit(first.half_offset), told.append)
    assert told == []
    await writer.close()
    replies = [end.reply for end in told if isinstance(end, Decision)]
    # Decisions go first.
    assert [type(reply) for reply in replies] == [Settled, Held, Held]
    with pytest.raises(Unavailable, match="writer_closed"):
        writer.put(prepare(4), told.append)
