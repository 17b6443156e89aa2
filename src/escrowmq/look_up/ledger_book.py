"""State of each configured ledger: last success, last error, whether it is reachable now.

Probes and look-ups both write here. The pipeline reports the states to its brokers after each
round, and the look-up process reports them to its broker with each probe.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from escrowmq.protocol.message.limits import NAME_CHARS_MAX, SHOWN_CHARS_MAX
from escrowmq.protocol.native.ledgers import REPORTED_MAX, LedgerReportRow

LOOK_UP_COUNTS_S = 120.0
"""How long a ledger is unreachable after a failed look-up, even if probes from here succeed."""


@dataclass(slots=True)
class _Entry:
    """One configured ledger. Times are on the monotonic clock."""

    uuid: str = ""
    uuid_before: str = ""
    is_probed: bool = False
    error: str = ""
    error_text: str = ""
    succeeded_at_s: float | None = None
    failed_at_s: float | None = None
    look_up_failed_at_s: float | None = None

    @property
    def is_reachable(self) -> bool:
        return self.is_probed and not self._has_failed_look_up()

    def _has_failed_look_up(self) -> bool:
        failed_at_s = self.look_up_failed_at_s
        return failed_at_s is not None and time.monotonic() < failed_at_s + LOOK_UP_COUNTS_S

    def note(self, error: str, text: str) -> None:
        if error:
            self.failed_at_s = time.monotonic()
            self.error = error[:NAME_CHARS_MAX]
            self.error_text = " ".join(text.split())[:SHOWN_CHARS_MAX]
        elif not self._has_failed_look_up():
            self.succeeded_at_s = time.monotonic()


class LedgerBook:
    """Entries by configured name. Any thread may read and write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def note_probe(self, name: str, uuid: str, error: str, text: str) -> None:
        """Record a probe. An empty error means that it reached the ledger."""
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            if uuid != entry.uuid and entry.uuid:
                entry.uuid_before = entry.uuid
            entry.uuid = uuid
            entry.is_probed = not error
            entry.note(error, text)

    def note_look_up(self, uuid: str, error: str, text: str) -> None:
        """Record look-ups in one ledger. An empty error means that all were answered."""
        with self._lock:
            for entry in self._entries.values():
                if entry.uuid == uuid:
                    entry.look_up_failed_at_s = time.monotonic() if error else None
                    entry.note(error, text)

    def rows(self) -> list[LedgerReportRow]:
        """Make the rows of a report.

        Unreachable ledgers come first, because the number of rows is limited.
        """
        with self._lock:
            found = sorted(
                self._entries.items(), key=lambda named: (named[1].is_reachable, named[0])
            )
            return [_row(name, entry) for name, entry in found[:REPORTED_MAX]]


def _row(name: str, entry: _Entry) -> LedgerReportRow:
    return LedgerReportRow(
        name=name[:NAME_CHARS_MAX],
        uuid=entry.uuid[:NAME_CHARS_MAX],
        is_reachable=entry.is_reachable,
        error=entry.error,
        error_text=entry.error_text,
        succeeded_ago_ms=_ago_ms(entry.succeeded_at_s),
        failed_ago_ms=_ago_ms(entry.failed_at_s),
        uuid_before=entry.uuid_before[:NAME_CHARS_MAX],
    )


def _ago_ms(at_s: float | None) -> int | None:
    return None if at_s is None else max(int((time.monotonic() - at_s) * 1_000), 0)
