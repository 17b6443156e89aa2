"""Text about the ledgers that the pipeline reports, for ``status``, ``txn explain``, ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from escrowmq.cli.asking import at, duration
from escrowmq.cli.preview import clipped
from escrowmq.cli.shapes.ledger_shape import LedgerReportShape
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.protocol.native.ledgers import LedgerRow

ERROR_WIDTH = 300
BROKER = "broker"
"""The reporter of ledgers that the broker itself looks up."""
NAMED_MAX = 5
"""The most ledgers that one sentence names."""

_RESTART = "then start the pipeline again"
_ADVICE = {
    "driver_missing": (
        'install the driver where the pipeline runs: pip install "escrowmq[postgres]" for '
        f"PostgreSQL; {_RESTART}"
    ),
    "ledger_unreachable": (
        "start the database, or correct the url of [ledger.{name}]; escrowmq doctor tries it from "
        "this machine"
    ),
    "look_up_failed": "the broker's look-up process fails: the broker's log says why",
    "ledger_missing": (
        "restore the ledger's tables, or correct the url of [ledger.{name}]; if there was no "
        "ledger so far: escrowmq ledger migrate {name} --create"
    ),
    "ledger_outdated": "bring its tables to this release: escrowmq ledger migrate {name}",
    "ledger_version_unknown": "update the pipeline: its release does not know these tables",
    "ledger_twice": (
        "one of the two is a copy of the other: remove the copy's section [ledger.NAME] from the "
        f"config; {_RESTART}"
    ),
    "standby": "name the primary in the url of [ledger.{name}]",
    "read_only": "name a database that can be written in the url of [ledger.{name}]",
    "ledger_slow": "the database takes too long to answer: look at its load and its locks",
    "too_slow": "the database takes too long to answer: look at its load and its locks",
    "out_of_time": "the database takes too long to answer: look at its load and its locks",
    "locked": "another program holds a lock on the ledger's tables: end it",
    "bad_ledger_url": "correct the url of [ledger.{name}]: quote special characters, %40 for @",
    "database_unsupported": "name SQLite or PostgreSQL in the url of [ledger.{name}]",
    "other_ledger": (
        "the url of [ledger.{name}] leads to databases with different ledgers: name one of them"
    ),
}
_ANY_ADVICE = "read the error; escrowmq doctor tries the ledger from this machine"


@dataclass(frozen=True)
class LedgersTold:
    """What a broker knows about ledgers."""

    #: Pipelines whose reports count now.
    pipelines: int = 0
    rows: Sequence[LedgerRow] = field(default=())
    #: Number of ledgers that the broker left out of its answer.
    left_out: int = 0

    @property
    def reported(self) -> list[LedgerRow]:
        """Ledgers in the config of a pipeline that reports, or of the broker."""
        return [row for row in self.rows if row.name]

    @property
    def is_reported(self) -> bool:
        """Whether a pipeline or the broker itself has reported recently."""
        return bool(self.pipelines or self.reported)

    @property
    def unnamed(self) -> str:
        """Names of configured ledgers whose databases never told a UUID, separated by commas."""
        names = [row.name for row in self.reported if not row.uuid]
        return ", ".join(names[:NAMED_MAX]) + (", …" if len(names) > NAMED_MAX else "")


class LedgerReach(Enum):
    """Whether the pipeline, or the broker, reaches the ledger that a transaction names."""

    #: Neither a pipeline nor the broker has reported its ledgers lately.
    UNREPORTED = auto()
    REACHED = auto()
    UNREACHED = auto()
    #: A configured database never told its UUID, so it may be this ledger.
    MAYBE_UNNAMED = auto()
    #: Every configured database told its UUID, and none is this ledger.
    NOT_CONFIGURED = auto()


def ask_ledgers(calls: NativeCalls) -> LedgersTold:
    """Ask a broker about ledgers; an older release, which lacks the request, reports none."""
    try:
        answer = calls.call(NativeCode.LIST_LEDGERS)
    except RequestRefused as refused:
        if refused.code == "request_unsupported":
            return LedgersTold()
        raise
    return LedgersTold(answer.header.pipelines, answer.rows, answer.header.left_out)


def standing_of(uuid: str, told: LedgersTold) -> tuple[LedgerReach, list[LedgerRow]]:
    """Return whether a ledger is reached, and the configured ledgers that explain it."""
    if not told.is_reported:
        return LedgerReach.UNREPORTED, []
    mine = [row for row in told.reported if row.uuid == uuid]
    if mine:
        reached = [row for row in mine if row.is_reachable]
        return (LedgerReach.REACHED, reached) if reached else (LedgerReach.UNREACHED, mine)
    unnamed = [row for row in told.reported if not row.uuid]
    if unnamed:
        return LedgerReach.MAYBE_UNNAMED, unnamed
    return LedgerReach.NOT_CONFIGURED, told.reported


def ledger_shapes(uuid: str, told: LedgersTold) -> list[LedgerReportShape]:
    """Return the JSON shapes of the configured ledgers that ``standing_of`` returns."""
    return [LedgerReportShape.of(row) for row in standing_of(uuid, told)[1]] if uuid else []


def error_of(row: LedgerRow) -> str:
    """Return a ledger's last error: its code and its text."""
    text = clipped(row.error_text, ERROR_WIDTH)
    return f"{row.error}: {text}" if text else row.error


def reporter_of(row: LedgerRow) -> str:
    """Return which process reported this ledger: `broker` or `pipeline`."""
    return BROKER if row.pipeline == BROKER else "pipeline"


def advice_for(row: LedgerRow) -> str:
    """Return what to do so that the pipeline reaches the ledger."""
    return _ADVICE.get(row.error, _ANY_ADVICE).format(name=row.name)


def ledger_line(row: LedgerRow, now_ms: int, unnamed: str = "") -> str:
    """Describe a ledger for ``status``; ``unnamed`` names the ledgers that never told a UUID."""
    waits = f", {row.undecided} undecided" if row.undecided else ""
    if not row.name and unnamed:
        return f"{row.undecided} undecided; no database reported this UUID, it may be {unnamed}"
    if not row.name:
        return f"{row.undecided} undecided; no reporting pipeline has it in its config"
    if row.is_reachable:
        return f"reached {_ago(row.succeeded_at_ms, now_ms)}{waits}"
    return f"UNREACHABLE{waits}: {error_of(row)}; {advice_for(row)}"


def explained_ledger(uuid: str, told: LedgersTold, now_ms: int) -> Iterator[str]:
    """Explain what the pipeline knows about the ledger that a transaction names, and what to do."""
    standing, rows = standing_of(uuid, told)
    if standing is LedgerReach.UNREPORTED:
        yield f"Its outcome is in the ledger {uuid}, which the pipeline looks up."
        yield "No pipeline has reported recently which ledgers it reaches."
    elif standing is LedgerReach.REACHED:
        row = rows[0]
        reached = _ago(row.succeeded_at_ms, now_ms)
        yield f"Its outcome is in the ledger {row.name} ({uuid}), which was reached {reached}."
    elif standing is LedgerReach.UNREACHED:
        yield f"Its outcome is in the ledger {rows[0].name} ({uuid}). It waits for that ledger."
        yield from _unreached(rows, now_ms)
    elif standing is LedgerReach.MAYBE_UNNAMED:
        yield f"It names the ledger {uuid}. No database has reported this UUID so far."
        yield "One of the ledgers below may have it. Until that one answers, the transaction waits."
        yield from _unreached(rows, now_ms)
    else:
        yield from _not_configured(uuid, rows)


def _unreached(rows: Sequence[LedgerRow], now_ms: int) -> Iterator[str]:
    for row in rows[:NAMED_MAX]:
        since = f"last reached {_ago(row.succeeded_at_ms, now_ms)}"
        yield f"The {reporter_of(row)} cannot reach ledger {row.name} ({since}): {error_of(row)}"
        yield f"To do: {advice_for(row)}."
    if len(rows) > NAMED_MAX:
        yield f"{len(rows) - NAMED_MAX} more ledgers cannot be reached; escrowmq status lists them."


def _not_configured(uuid: str, rows: Sequence[LedgerRow]) -> Iterator[str]:
    before = next((row for row in rows if row.uuid_before == uuid), None)
    if before is not None:
        yield (
            f"It names the ledger {uuid}. The database of ledger {before.name} had this UUID, "
            f"and now reports {before.uuid}: its tables were created again, or its url changed."
        )
        yield f"To do: set the url of [ledger.{before.name}] to the old database again."
    elif rows:
        known = ", ".join(f"{row.name} is {row.uuid}" for row in rows[:NAMED_MAX])
        more = f", and {len(rows) - NAMED_MAX} more" if len(rows) > NAMED_MAX else ""
        yield f"It names the ledger {uuid}. No configured ledger has this UUID: {known}{more}."
        yield (
            "To do: add a section [ledger.NAME] with the url of the producer's database to the "
            f"pipeline's config, or correct a url that leads to another database; {_RESTART}."
        )
    else:
        yield f"It names the ledger {uuid}. The pipeline has no ledger in its config."
        yield (
            "To do: add a section [ledger.NAME] with the url of the producer's database to the "
            f"pipeline's config; {_RESTART}."
        )
    yield "Until then the pipeline asks the producers instead."


def _ago(ms: int | None, now_ms: int) -> str:
    return f"{duration(now_ms - ms)} ago, at {at(ms)}" if ms else "never"
