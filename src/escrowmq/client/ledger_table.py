"""Old path of ``escrowmq.client.ledger.table``; it goes away with the release after 0.2."""

from __future__ import annotations

import warnings

from escrowmq.client.ledger import table

_OLD_NAMES = {"Answer": "LedgerAnswer", "Ending": "TransactionEnding", "Outcome": "LedgerOutcome"}


def __getattr__(name: str) -> object:
    value: object = getattr(table, _OLD_NAMES.get(name, name))
    warnings.warn(
        f"import {_OLD_NAMES.get(name, name)} from escrowmq.client.ledger.table",
        DeprecationWarning,
        stacklevel=2,
    )
    return value
