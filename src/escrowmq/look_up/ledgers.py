"""Finds which ledger is in which database, at the start of every settle round.

A half message names its ledger by a UUID, and the operator configures databases. Only a database
itself can say which ledger it holds. A database that does not answer is left out of the round
before any task waits for it. Its last known UUID is remembered, so its transactions wait for it,
and no back-checks are sent and counted for them.

While a database has never given its UUID, it may hold any ledger that no other database has named.
The transactions of all such ledgers then wait.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from escrowmq.client.database.databases import cutting, opener_of, reading
from escrowmq.client.database.errors import failure_of
from escrowmq.client.ledger.marks import read_ledger, read_version
from escrowmq.look_up.ledger_book import LedgerBook
from escrowmq.look_up.ledger_config import LedgerConfig, masked, scrubbed
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.event_log import event_log

log = event_log(__name__)

#: How long a round waits for its databases, all in parallel.
WAIT_S = 1.0
#: How long one database may take to answer, once connected. Rounds do not ask it again meanwhile.
ANSWER_S = 5.0

SLOW = "ledger_slow"
STANDBY = "standby"
TWICE = "ledger_twice"
TWICE_CAUSE = "another configured database has the same UUID"
UNNAMED = "ledger_unnamed"
"""Reason to skip a ledger that no database has named, while one database has not answered yet."""


@dataclass(frozen=True, kw_only=True)
class KnownLedgers:
    """What a round knows about ledgers.

    The pipeline sends it to its tasks; its URLs must not appear anywhere else.
    """

    #: URLs of the databases that can be asked, by ledger UUID.
    urls: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Why a ledger cannot be asked in this round, by ledger UUID.
    silent: Mapping[str, str] = field(default_factory=dict)
    #: Why a configured database has never said which ledger it has, by configured name.
    unnamed: Mapping[str, str] = field(default_factory=dict)

    def fault_of(self, ledger_uuid: str) -> str | None:
        """Return why this ledger cannot be asked in this round, or None if it can."""
        return None if ledger_uuid in self.urls else self.silent.get(ledger_uuid, UNNAMED)

    @property
    def uuids(self) -> list[str]:
        """The UUID of every ledger whose transactions are looked up, now or later."""
        return sorted({*self.urls, *self.silent})


@dataclass(frozen=True)
class ProbeResult:
    """A database's answer: its ledger, if that is known, and why it cannot be asked, if so."""

    uuid: str = ""
    fault: str = ""
    cause: str = field(default="", compare=False)


class Ledgers:
    """The configured databases. Only one thread may ask at a time."""

    def __init__(self, configured: Mapping[str, LedgerConfig]) -> None:
        self._asked = {name: _Database(name, config.url) for name, config in configured.items()}
        #: The answers of all databases, for reports.
        self.book = LedgerBook()
        #: The last answer of each database, by configured name.
        self.results: Mapping[str, ProbeResult] = {}

    def known(self) -> KnownLedgers:
        """Ask all databases. One that does not answer within the wait is silent in this round."""
        until_s = time.monotonic() + WAIT_S
        for database in self._asked.values():
            database.ask()
        found = {name: database.found(until_s) for name, database in self._asked.items()}
        times = Counter(one.uuid for one in found.values())
        urls: dict[str, str] = {}
        silent: dict[str, str] = {}
        unnamed: dict[str, str] = {}
        for name, one in list(found.items()):
            if not one.uuid:
                unnamed[name] = one.fault
            elif times[one.uuid] > 1:
                # One database may be a copy of the other. A fence in the copy would contradict the
                # original.
                silent[one.uuid] = TWICE
                found[name] = replace(one, fault=TWICE, cause=TWICE_CAUSE)
            elif one.fault:
                silent[one.uuid] = one.fault
            else:
                urls[one.uuid] = self._asked[name].url
        for name, one in found.items():
            self.book.note_probe(name, one.uuid, one.fault, one.cause)
        self.results = found
        return KnownLedgers(urls=urls, silent=silent, unnamed=unnamed)


class _Database:
    """One configured database and its last answer."""

    def __init__(self, name: str, url: str) -> None:
        self.url = url
        self._name = name
        self._last = ProbeResult()
        self._told = ProbeResult()
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Ask in a thread, unless the thread of an earlier round still waits for an answer."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._asking, name=f"escrowmq-ledger-{self._name}", daemon=True
            )
            self._thread.start()

    def found(self, until_s: float) -> ProbeResult:
        """The answer, or the last known UUID if the database is slow."""
        assert self._thread is not None
        self._thread.join(max(until_s - time.monotonic(), 0))
        last = self._last
        if self._thread.is_alive():
            last = ProbeResult(last.uuid, SLOW, "no answer yet")
        self._tell(last)
        return last

    def _asking(self) -> None:
        try:
            self._last = self._read()
        except Exception as error:  # noqa: BLE001 -- after any failure it cannot be asked
            fault = error.code if isinstance(error, EscrowError) else failure_of(error).value
            # Keep the last known UUID: each look-up checks the UUID itself.
            self._last = ProbeResult(self._last.uuid, fault, scrubbed(str(error), self.url))

    def _read(self) -> ProbeResult:
        with (
            opener_of(self.url)() as connection,
            cutting(connection, time.monotonic() + ANSWER_S),
            reading(connection),
        ):
            uuid, is_standby = read_ledger(connection)
            try:
                read_version(connection)
            except RequestRefused as refused:
                # The UUID is known, so its transactions wait for `escrowmq ledger migrate`.
                return ProbeResult(uuid, refused.code, str(refused))
        if is_standby:
            return ProbeResult(uuid, STANDBY, "this database is a standby; name the primary")
        return ProbeResult(uuid)

    def _tell(self, found: ProbeResult) -> None:
        """Log the answer if it changed."""
        if found == self._told:
            return
        before, self._told = self._told, found
        facts = {"ledger": self._name, "ledger_uuid": found.uuid, "url": masked(self.url)}
        if found.fault:
            why = {"reason": found.fault, "cause": found.cause}
            log.warning("ledger_silent", extra={**facts, **why})
        elif before.uuid not in ("", found.uuid):
            # The URL leads to another database, or the ledger was created again. Transactions that
            # name the old UUID have no ledger here.
            log.warning("ledger_exchanged", extra={**facts, "before": before.uuid})
        else:
            log.info("ledger_found", extra=facts)
