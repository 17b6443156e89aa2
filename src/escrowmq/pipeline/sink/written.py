"""One write of the sink: its brokers, the rows that each holds, and the batch that decides them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from escrowmq.model.sink_attempt import HeldAs, SinkAttempt, SinkRun

NOTHING_HELD = -1


class SinkBroker(NamedTuple):
    """One of the brokers that a write goes to."""

    #: The broker's own name; empty for a single broker, whose name is not needed.
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class AttemptPart:
    """The part of an attempt that another broker holds."""

    broker: SinkBroker
    held_as: HeldAs
    head: int
    last_number: int
    rows: int


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task reports to the driver: everything that a committing object needs to decide."""

    attempt: SinkAttempt
    #: The attempt's first half message at home; ``NOTHING_HELD`` if it had no rows.
    head: int
    #: The number of the attempt's last request at home.
    last_number: int
    #: Half messages at home. One of them may only serve to open the attempt.
    rows: int
    elsewhere: tuple[AttemptPart, ...] = ()
    #: For a named batch, the row count of the DataFrame and the sum of the rows' hashes.
    row_count: int = 0
    row_sum: int = 0


class SinkBatch(NamedTuple):
    """The unit of one decision."""

    run: SinkRun
    #: A number in a stream, otherwise a name.
    batch: int | str
    #: The fingerprint of its rows; empty if there is none.
    content: str = ""

    @property
    def number(self) -> int | None:
        """The batch number, for a stream."""
        return self.batch if isinstance(self.batch, int) else None

    @property
    def name(self) -> str | None:
        """The batch name, for a plain write."""
        return self.batch if isinstance(self.batch, str) else None
