"""Asks ledgers about transactions, with one inquiry and one connection per ledger.

A ledger that fails is not asked again by the same `Inquiries`, nor for `REST_S` by the same
process. The other ledgers then wait for it once, not at every request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple, Self

from escrowmq.client.database.connections import DatabaseConnection
from escrowmq.client.database.databases import Opener, opener_of
from escrowmq.client.ledger.checks import Inquiry, LedgerAnswer, deadline_at_ms
from escrowmq.look_up.ledger_config import scrubbed
from escrowmq.look_up.ledgers import KnownLedgers
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.lineage import Sight

#: How long a process does not ask a ledger after it failed.
REST_S = 10.0

#: By URL: when the ledger may be asked again, and its failure. Threads share it: each operation on
#: it is atomic, and a lost update costs one more question.
_resting: dict[str, tuple[float, LedgerFailure]] = {}


class LedgerFailure(NamedTuple):
    """Why a ledger was not asked, or not completely."""

    #: A stable code of the failure.
    reason: str
    #: The error text, without the secrets of the database URL.
    cause: str


class InquiredRows(NamedTuple):
    """Transactions of one broker and one ledger, in columns of equal length."""

    transaction_ids: Sequence[str]
    producer_groups: Sequence[str]
    #: The offset of each transaction's first half message.
    half_offsets: Sequence[int]
    stored_at_ms: Sequence[int]
    allowed_ms: Sequence[int]
    #: The broker's time when it read the row.
    as_of_ms: Sequence[int]

    def overdue(self) -> set[str]:
        """Return the ids that are past their deadlines; if two rows have one id, both must be."""
        rows = zip(
            self.transaction_ids, self.stored_at_ms, self.allowed_ms, self.as_of_ms, strict=True
        )
        on_time = {
            key
            for key, stored_at_ms, allowed_ms, as_of_ms in rows
            if deadline_at_ms(stored_at_ms, allowed_ms) >= as_of_ms
        }
        return set(self.transaction_ids) - on_time


class Inquiries:
    """Inquiries at ledgers, and their connections. Only one thread may use an object."""

    def __init__(self, ledgers: KnownLedgers, *, seconds_max: float) -> None:
        self._ledgers = ledgers
        #: Time limit of the inquiry at one ledger, over all requests to it.
        self._seconds_max = seconds_max
        self._inquiries: dict[str, Inquiry] = {}
        self._failures: dict[str, LedgerFailure] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._open.close()

    @property
    def asked(self) -> Mapping[str, LedgerFailure | None]:
        """Each ledger that was asked or is resting, by UUID, with its failure if it has one."""
        uuids = {*self._inquiries, *self._failures}
        return {uuid: self._failures.get(uuid) for uuid in sorted(uuids)}

    def resolve(
        self, ledger_uuid: str, rows: InquiredRows, sight: Sight | None
    ) -> list[LedgerAnswer]:
        """Look up rows and fence those that are absent and overdue; return one answer per row.

        ``sight`` is the broker's history, taken before it read the rows.
        """
        ids = rows.transaction_ids
        reason = self._ledgers.fault_of(ledger_uuid)
        if reason is None:
            url = self._ledgers.urls[ledger_uuid]
            until_s, failure = _resting.get(url, (0.0, None))
            if failure is None or time.monotonic() >= until_s:
                return self._asked(ledger_uuid, url, rows, sight)
            self._failures[ledger_uuid] = failure
            reason = failure.reason
        return [LedgerAnswer(LedgerOutcome.UNKNOWN, reason)] * len(ids)

    def _asked(
        self, ledger_uuid: str, url: str, rows: InquiredRows, sight: Sight | None
    ) -> list[LedgerAnswer]:
        inquiry = self._inquiry(ledger_uuid, url)
        answers = inquiry.resolve(
            rows.transaction_ids, rows.producer_groups, rows.overdue(), sight, rows.half_offsets
        )
        if inquiry.failed is not None:
            failure = LedgerFailure(inquiry.failed.reason, inquiry.cause)
            self._failures[ledger_uuid] = failure
            _resting[url] = time.monotonic() + REST_S, failure
        return [answers[key] for key in rows.transaction_ids]

    def _inquiry(self, ledger_uuid: str, url: str) -> Inquiry:
        inquiry = self._inquiries.get(ledger_uuid)
        if inquiry is None:
            inquiry = Inquiry(
                self._open.enter_context(_kept(url)),
                ledger_uuid,
                seconds_max=self._seconds_max,
                without_secrets=partial(scrubbed, url=url),
            )
            self._inquiries[ledger_uuid] = inquiry
        return inquiry


@contextmanager
def _kept(url: str) -> Iterator[Opener]:
    """Yield an opener that reuses one connection, opened on first use.

    The database driver is imported on first use too. If it is not installed here, this ledger fails
    and the others do not.
    """
    with ExitStack() as opened:
        connections: list[DatabaseConnection] = []

        @contextmanager
        def again() -> Iterator[DatabaseConnection]:
            if not connections:
                connections.append(opened.enter_context(opener_of(url)()))
            yield connections[0]

        yield again
