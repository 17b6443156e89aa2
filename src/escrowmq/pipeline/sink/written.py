"""One write of the sink: its brokers, the rows that each holds, and the batch that decides them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from escrowmq.model.sink_attempt import HeldAs, SinkAttempt, SinkRun

NOTHING_HELD = -1


class SinkBroker(NamedTuple):
    """One of the brokers that a write goes to."""

    #: As it calls itself; empty if it is the only one, which nobody asks.
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Part:
    """What of an attempt another broker holds."""

    broker: SinkBroker
    held_as: HeldAs
    head: int
    last_number: int
    rows: int


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver: all that is needed to decide, on whichever object does."""

    attempt: SinkAttempt
    #: The attempt's first half message at home; ``NOTHING_HELD`` if it had no rows.
    head: int
    #: The number of its last request there.
    last_number: int
    #: Half messages there; one of them may be there only to open the attempt.
    rows: int
    elsewhere: tuple[Part, ...] = ()
    #: Of a batch with a name, the rows of the DataFrame and the sum of their hashes.
    row_count: int = 0
    row_sum: int = 0


class SinkBatch(NamedTuple):
    """The unit of one decision."""

    run: SinkRun
    #: A number in a stream, a name else.
    batch: int | str
    #: The fingerprint of its rows; empty if there is none.
    content: str = ""

    @property
    def number(self) -> int | None:
        """Of a stream."""
        return self.batch if isinstance(self.batch, int) else None

    @property
    def name(self) -> str | None:
        """Of a plain write."""
        return self.batch if isinstance(self.batch, str) else None
