"""Opens the ledgers in the config for commands that decide transactions by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.model.errors import EscrowError, RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.ledger.table import SqlLedger
    from escrowmq.look_up.ledger_config import LedgerConfig
    from escrowmq.protocol.native.headers import LifeLineAnswer

TWICE = "ledger_twice"
#: Transactions in these states can still be decided.
OPEN_STATES = ("prepared", "parked")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenLedger:
    """A ledger in the config, and what its database said."""

    name: str
    #: Empty if the database did not tell it.
    uuid: str = ""
    ledger: SqlLedger | None = None
    #: Why it cannot be used: an error code, and its text in ``cause``.
    fault: str = ""
    cause: str = ""


def open_ledgers(configured: Mapping[str, LedgerConfig]) -> list[GivenLedger]:
    """Ask each database for its ledger's UUID; a database that fails is listed with its fault.

    Two ledgers with the same UUID are both unusable: one may be a copy, and a fence in the copy
    would contradict a row of the other.
    """
    found = [_open(name, config.url) for name, config in configured.items()]
    times = Counter(one.uuid for one in found if one.uuid)
    return [
        GivenLedger(
            name=one.name, uuid=one.uuid, fault=TWICE, cause="another one has the same UUID"
        )
        if times[one.uuid] > 1
        else one
        for one in found
    ]


def usable(ledgers: list[GivenLedger]) -> dict[str, SqlLedger]:
    """Return the ledgers that can be used, by UUID."""
    return {one.uuid: one.ledger for one in ledgers if one.ledger is not None}


def missing_ledger(head: LifeLineAnswer, ledgers: list[GivenLedger]) -> str | None:
    """Return what a ledger lookup is missing and what to do, or None if nothing is missing."""
    if not head.ledger or head.ledger in usable(ledgers):
        return None
    if not ledgers:
        return (
            "its outcome is in a ledger, and the config has no [ledger.NAME] section: pass"
            " --config FILE or set ESCROWMQ_CONFIG, or decide without the ledger by --force"
        )
    asked = "; ".join(f"{one.name}: {_standing(one)}" for one in ledgers)
    return (
        f"its outcome is in a ledger that is not among the configured ones ({asked}): correct the"
        " url of [ledger.NAME], or decide without the ledger by --force"
    )


def refuse_missing_ledger(head: LifeLineAnswer, ledgers: list[GivenLedger]) -> None:
    """Refuse to decide an undecided transaction whose ledger is not usable here.

    Raises:
        RequestRefused: ``ledger_not_given``, with what is missing; nothing was decided.
    """
    missing = missing_ledger(head, ledgers) if head.state in OPEN_STATES else None
    if missing is not None:
        raise RequestRefused(
            "ledger_not_given", missing, transaction_id=head.transaction_id, ledger=head.ledger
        )


def _standing(one: GivenLedger) -> str:
    return f"{one.fault}, {one.cause}" if one.fault else f"has UUID {one.uuid}"


def _open(name: str, url: str) -> GivenLedger:
    from escrowmq.client.ledger.table import SqlLedger

    try:
        ledger = SqlLedger(url)
        return GivenLedger(name=name, uuid=ledger.uuid(), ledger=ledger)
    except EscrowError as error:
        cause = str(error.fields.get("cause") or error.message)
        return GivenLedger(name=name, fault=error.code, cause=cause)
    except ImportError as error:
        cause = f"{error}: install the driver that the URL needs"
        return GivenLedger(name=name, fault="driver_missing", cause=cause)
