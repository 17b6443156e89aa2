"""Settings of transactions and their back-checks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from escrowmq.model.bounds import check_bounds, check_choice, check_order

HOUR_MS = 3_600_000

CheckedBy = Literal["auto", "broker", "pipeline", "off"]
AfterLastCheck = Literal["park", "rollback"]
StateStoreName = Literal["table", "mapped", "sql"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPolicy:
    """Section ``[transaction]``. The defaults are RocketMQ's."""

    #: Which process checks undecided transactions. With `auto`, a pipeline does while it is alive,
    #: and the broker does otherwise. `off` checks nothing: undecided transactions stay undecided.
    checked_by: CheckedBy = "auto"
    #: Age of an undecided transaction before its first back-check.
    check_after_ms: int = 6_000
    #: Wait between two back-checks of one transaction.
    check_interval_ms: int = 30_000
    #: Factor by which the wait grows with each back-check.
    check_backoff: float = 1.0
    #: Longest wait between two back-checks.
    check_interval_max_ms: int = 600_000
    #: Back-checks sent to a live producer before a transaction is parked.
    checks_max: int = 15
    #: What happens after the last back-check. `park` keeps the transaction undecided for an
    #: operator. `rollback` rolls it back and keeps its messages in the discard topic, as RocketMQ
    #: does; a transaction that names a ledger is parked all the same.
    after_last_check: AfterLastCheck = "park"
    #: Back-checks of one producer group that may be unanswered at a time.
    check_budget_per_group: int = 1_000
    #: An undecided transaction older than this is parked, even if no producer was online.
    park_after_ms: int = 72 * HOUR_MS
    #: Messages in one transaction. An attempt of the Spark sink has no such limit.
    messages_max: int = 4_096
    #: Bytes in one transaction, and in one request. Only the latter limits the Spark sink.
    transaction_bytes_max: int = 16 * 1024 * 1024
    #: A half message that a stock client resends within this time gets the first one's offsets.
    resend_window_ms: int = 30_000
    #: Where the state of transactions is looked up: `table` is the table in memory, `mapped` are
    #: mapped files of fixed records as in RocketMQ 3.1.4, `sql` is a database as in 3.1.5 and 4.0.
    state_store: StateStoreName = "table"
    #: SQLAlchemy's URL of the database of `sql`, such as
    #: `postgresql://user:${PASSWORD}@host/database`; empty means SQLite in the store's directory.
    state_url: str = ""

    def __post_init__(self) -> None:
        check_bounds("transaction", self, _BOUNDS)
        check_order("transaction", self, "check_interval_ms", "check_interval_max_ms")
        check_choice("transaction", self, "checked_by", get_args(CheckedBy))
        check_choice("transaction", self, "after_last_check", get_args(AfterLastCheck))
        check_choice("transaction", self, "state_store", get_args(StateStoreName))

    @property
    def is_for_pipelines(self) -> bool:
        """Whether pipelines check the transactions of this broker."""
        return self.checked_by in ("auto", "pipeline")

    @classmethod
    def told_by(cls, status: object) -> CheckPolicy:
        """Return the policy that a broker's status tells, with defaults for the rest."""
        # The state store does not change the rules, and older brokers do not tell theirs.
        names = {field.name for field in fields(cls)} - {"state_store"}
        return cls(**{name: getattr(status, name) for name in names if hasattr(status, name)})


_BOUNDS = (
    ("check_after_ms", 0, 24 * HOUR_MS),
    ("check_interval_ms", 1, 24 * HOUR_MS),
    ("check_backoff", 1.0, 10.0),
    ("check_interval_max_ms", 1, 24 * HOUR_MS),
    ("checks_max", 1, 255),
    ("check_budget_per_group", 1, 1_000_000),
    ("park_after_ms", 1, 10 * 365 * 24 * HOUR_MS),
    ("messages_max", 1, 4_096),
    ("transaction_bytes_max", 1024, 16 * 1024 * 1024),
    ("resend_window_ms", 0, HOUR_MS),
)
