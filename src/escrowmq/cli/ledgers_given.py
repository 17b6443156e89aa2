"""The ledgers that the config names, opened by commands that settle or look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.model.errors import EscrowError

if TYPE_CHECKING:
    from escrowmq.client.ledger_table import SqlLedger
    from escrowmq.pipeline.ledger_config import LedgerConfig

TWICE = "ledger_twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenLedger:
    """A ledger of the config, and what its database said."""

    name: str
    #: Empty if it did not say.
    uuid: str = ""
    ledger: SqlLedger | None = None
    #: Why it cannot be used: a code, and the words.
    fault: str = ""
    cause: str = ""


def open_ledgers(configured: Mapping[str, LedgerConfig]) -> list[GivenLedger]:
    """Ask each database which ledger it has; one that does not say is in the list with its fault.

    Two with the same UUID are both unusable: one may be a copy, and a fence in it would undo what
    the other has.
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
    """By UUID."""
    return {one.uuid: one.ledger for one in ledgers if one.ledger is not None}


def _open(name: str, url: str) -> GivenLedger:
    from escrowmq.client.ledger_table import SqlLedger

    try:
        ledger = SqlLedger(url)
        return GivenLedger(name=name, uuid=ledger.uuid(), ledger=ledger)
    except EscrowError as error:
        cause = str(error.fields.get("cause") or error.message)
        return GivenLedger(name=name, fault=error.code, cause=cause)
    except ImportError as error:
        cause = f"{error}: install the driver that the URL needs"
        return GivenLedger(name=name, fault="driver_missing", cause=cause)
