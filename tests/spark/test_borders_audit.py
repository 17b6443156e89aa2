"""Audited programs of the hunt at the borders: the audit finds exactly what a restore lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from escrowmq.pipeline.audit.report import AuditReport
from tests.ledger.borders import audits
from tests.ledger.borders.audits import Auditor, expected_findings
from tests.ledger.borders.hunt import Hunt, quiet
from tests.ledger.borders.model import Found, Wrong
from tests.ledger.borders.programs import (
    Backup,
    Block,
    Orphan,
    Part,
    Pay,
    Raise,
    Restart,
    Restore,
    Savepoint,
    Settle,
    Step,
    Sweep,
)
from tests.ledger.borders.world import Audit, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def block(
    *parts: Part, kind: str = "producer", picks: float = 0.0, before_decision: str = ""
) -> Block:
    return Block(
        kind,
        parts,
        grip="connection",
        is_callers=False,
        picks=picks,
        before_decision=before_decision,
    )


PAY = Pay("last")
UNDONE = Savepoint((PAY,), is_by_hand=True, end="raise")
SOUND: list[Step] = [
    block(PAY, UNDONE),
    block(PAY, Raise()),
    block(PAY, before_decision="lose"),
    Settle(),
    Backup(chooses=0.0),
    block(PAY, kind="chain"),
    block(PAY, kind="consumer", picks=0.9),
    Orphan(),
    Restart(),
    Sweep(),
]
#: Orders are numbered from 1. Order 2 is undecided in the backup, and its row is swept. Orders 3
#: and 5 exist only in the abandoned history. Order 4 was rolled back.
RESTORED: list[Step] = [
    block(PAY),
    block(PAY, before_decision="backup"),
    Sweep(),
    block(PAY, UNDONE, PAY),
    Restore(chooses=0.0),
    block(PAY),
]


class Fixed(Hunt):
    """Runs these two programs."""

    def program(self, number: int) -> tuple[str, list[Step]]:
        """Return the program without a restore, or the one with it."""
        return [("sqlite3", SOUND), ("aiosqlite", RESTORED)][number]


def hunt_of(audit: Audit) -> Fixed:
    return Fixed(0, lambda: pytest.fail("it needs no server"), audit)


def test_an_audit_finds_exactly_what_a_restore_lost(spark: SparkSession) -> None:
    auditor, expected = Auditor(spark), []

    def audit(world: World, found: Found) -> None:
        auditor(world, found)
        expected.append(expected_findings(world.model, found))

    hunt = hunt_of(audit)
    with quiet():
        hunt.run(0)
        assert expected.pop() == {}
        assert hunt.counts["commits"] == 4
        hunt.run(1)
    found = expected.pop()
    assert found.pop("business_row_without_message") == {"3", "5"}
    assert len(found.pop("ledger_row_unknown")) == 1
    assert found == {}
    assert (hunt.counts["parked"], hunt.counts["audits with findings"]) == (1, 1)


def test_an_audit_that_finds_nothing_after_a_restore_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = AuditReport(started_at_ms=0, took_ms=0, brokers=[], comparisons=[], findings=[])
    monkeypatch.setattr(audits, "run_audit", lambda *_: empty)
    with quiet(), pytest.raises(Wrong, match=r"the audit finds {}, not .*'3'"):
        hunt_of(Auditor(None)).run(1)  # type: ignore[arg-type]  # Spark is not used
