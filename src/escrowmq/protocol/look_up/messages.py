"""Messages between a broker and its look-up process.

The broker sends ``Configure`` first, and the process answers ``Configured``. Both have a version,
because the process may start from a newer installation than the broker. After that, each
``Probe`` gets a ``Known`` and each ``LookUpRequest`` gets a ``LookUpAnswer`` with the same number,
in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec

from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.lineage import Sight
from escrowmq.protocol.native.ledgers import REPORTED_MAX, LedgerReportRow

VERSION = 1
"""Version of these messages. A process ends if the broker's version differs."""

LEDGERS_MAX = REPORTED_MAX
"""Most configured ledgers."""

ROWS_MAX = 4_000
"""Most transactions in one request."""

REQUESTS_MAX = 64
"""Most requests that wait for an answer at a time."""

WAIT_MS_MAX = 60_000
"""Longest time that a request may allow for its answer."""


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """The first message to the process. Its repr hides the URLs, which contain passwords."""

    version: int = VERSION
    #: Database URLs, by configured name.
    ledgers: Annotated[dict[str, str], msgspec.Meta(max_length=LEDGERS_MAX)]

    def __repr__(self) -> str:
        return f"Configure(version={self.version}, ledgers={sorted(self.ledgers)})"


class Configured(msgspec.Struct, frozen=True, kw_only=True, tag="configured"):
    """The process has its ledgers and takes requests."""

    version: int = VERSION


class Probe(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """Ask every configured database which ledger it has."""

    number: int


class ProbedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of one configured database."""

    #: Its name, its UUID, and when it was last reached, as LIST_LEDGERS shows them.
    report: LedgerReportRow
    #: Code of the reason why it cannot be asked now; empty if it can.
    fault: str = ""
    #: Text of that reason, without the secrets of the URL.
    cause: str = ""


class Known(msgspec.Struct, frozen=True, kw_only=True, tag="known"):
    """Which ledger is in which database."""

    number: int = 0
    ledgers: Annotated[tuple[ProbedLedger, ...], msgspec.Meta(max_length=LEDGERS_MAX)] = ()

    @property
    def faults(self) -> Mapping[str, str]:
        """By ledger UUID: why it cannot be asked now; empty if it can."""
        return {one.report.uuid: one.fault for one in self.ledgers if one.report.uuid}

    @property
    def unnamed(self) -> Mapping[str, str]:
        """By configured name: why a database has never said which ledger it has.

        While there is one, it may hold any ledger that no other database has named.
        """
        return {one.report.name: one.fault for one in self.ledgers if not one.report.uuid}


class LookUpRequest(msgspec.Struct, frozen=True, kw_only=True, tag="look_up"):
    """Look up transactions in one ledger, and fence those that are absent and overdue.

    The columns have equal lengths, at most ``ROWS_MAX``.
    """

    #: The sender of the frame sets it.
    number: int = 0
    ledger_uuid: str
    #: The broker's history, taken before it read the rows.
    sight: Sight | None
    #: The broker's time when it read the rows.
    as_of_ms: int
    #: How long the process may take. Rows without an answer by then are UNKNOWN.
    wait_ms: Annotated[int, msgspec.Meta(ge=1, le=WAIT_MS_MAX)] = 20_000
    #: The offset of each transaction's first half message.
    half_offsets: Sequence[int]
    transaction_ids: Sequence[str]
    producer_groups: Sequence[str]
    stored_at_ms: Sequence[int]
    allowed_ms: Sequence[int]

    def __post_init__(self) -> None:
        columns = (
            self.half_offsets,
            self.transaction_ids,
            self.producer_groups,
            self.stored_at_ms,
            self.allowed_ms,
        )
        if len({len(column) for column in columns}) > 1:
            raise ValueError("the columns of a look-up have different lengths")
        if self.rows > ROWS_MAX:
            raise ValueError(f"a look-up has at most {ROWS_MAX} rows")

    @property
    def rows(self) -> int:
        """The number of transactions."""
        return len(self.transaction_ids)


class LookUpAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="looked_up"):
    """The ledger's answer for each row of a request, in the order of the rows."""

    number: int
    outcomes: list[LedgerOutcome]
    #: Why an outcome is UNKNOWN; empty for the others.
    reasons: list[str]
    #: Code and text of the failure that stopped the look-up; empty if the ledger answered. The text
    #: is without the secrets of the URL.
    error: str = ""
    error_text: str = ""

    def __post_init__(self) -> None:
        if len(self.outcomes) != len(self.reasons):
            raise ValueError("the columns of an answer have different lengths")


LookUpCall: TypeAlias = Configure | Probe | LookUpRequest
"""A message to the process."""
LookUpReply: TypeAlias = Configured | Known | LookUpAnswer
"""A message from the process."""
