"""What an audit can find, by name. ``meanings.py`` says what each finding means."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Breach(StrEnum):
    """How the promise is broken."""

    #: Something is missing.
    LOST = "lost"
    #: Something exists more than once.
    DOUBLED = "doubled"
    #: Something exists that must not.
    PHANTOM = "phantom"
    #: Two sources contradict each other.
    CONTRADICTORY = "contradictory"
    #: Something should have progressed long ago.
    STUCK = "stuck"
    #: A person decided it by force.
    FORCED = "forced"


class FindingName(StrEnum):
    """Names of findings. They never change, because programs read them."""

    # Half and op records.
    DECIDED_TWICE = "decided_twice"
    DECIDED_BOTH_WAYS = "decided_both_ways"
    DECIDED_IN_PART = "decided_in_part"
    HALF_STORED_TWICE = "half_stored_twice"
    OP_WITHOUT_HALF = "op_without_half"
    UNREADABLE = "unreadable"
    DECIDED_BY_FORCE = "decided_by_force"

    # The state table.
    HALF_NOT_IN_TABLE = "half_not_in_table"
    DECISION_FORGOTTEN = "decision_forgotten"
    DECISION_WITHOUT_OP = "decision_without_op"
    TABLE_CONTRADICTS = "table_contradicts"
    TABLE_SPLITS = "table_splits"
    COUNT_DIFFERS = "count_differs"
    ROW_WITHOUT_HALF = "row_without_half"
    UNDECIDED_TOO_LONG = "undecided_too_long"

    # Visible messages.
    COMMITTED_NOT_VISIBLE = "committed_not_visible"
    VISIBLE_NOT_COMMITTED = "visible_not_committed"
    VISIBLE_TWICE = "visible_twice"
    VISIBLE_WITHOUT_HALF = "visible_without_half"

    # The lake.
    LAKE_MESSAGE_MISSING = "lake_message_missing"
    LAKE_MESSAGE_DOUBLED = "lake_message_doubled"
    LAKE_MESSAGE_UNKNOWN = "lake_message_unknown"
    LAKE_DECISION_MISSING = "lake_decision_missing"
    LAKE_DECISION_DOUBLED = "lake_decision_doubled"
    LAKE_DECISION_UNKNOWN = "lake_decision_unknown"
    LAKE_CONTRADICTS = "lake_contradicts"

    # Ledger tables.
    LEDGER_CONTRADICTS = "ledger_contradicts"
    LEDGER_ROW_MISSING = "ledger_row_missing"
    LEDGER_ROW_UNKNOWN = "ledger_row_unknown"

    # The user's own table.
    BUSINESS_ROW_WITHOUT_MESSAGE = "business_row_without_message"
    BUSINESS_ROW_WITH_SEVERAL = "business_row_with_several"
    MESSAGE_WITHOUT_BUSINESS_ROW = "message_without_business_row"

    # Rounds of the half/op comparison; the last two only in their own reports.
    ROUND_DIFFERS = "round_differs"
    STATE_STORE_LACKS = "state_store_lacks"
    STATE_STORE_KEEPS = "state_store_keeps"

    # Consumers.
    OFFSET_BEYOND_END = "offset_beyond_end"
    CONSUMER_STUCK = "consumer_stuck"


class ComparedEvidence(StrEnum):
    """The evidence that was compared with the records."""

    RECORDS = "records"
    TABLE = "state table"
    VISIBLE = "visible messages"
    LAKE = "lake"
    LEDGER = "ledger"
    BUSINESS = "business table"
    ROUNDS = "comparison rounds"
    CONSUMERS = "consumers"


class Meaning(NamedTuple):
    """The meaning of a finding."""

    kind: Breach
    compared: ComparedEvidence
    #: One line for the report.
    about: str
    #: The operator's next step.
    remedy: str


#: Findings that a second read may explain, because the broker kept working during the first.
MAY_PASS = frozenset(
    {
        FindingName.HALF_NOT_IN_TABLE,
        FindingName.DECISION_WITHOUT_OP,
        FindingName.TABLE_SPLITS,
        FindingName.COUNT_DIFFERS,
        FindingName.ROW_WITHOUT_HALF,
        FindingName.COMMITTED_NOT_VISIBLE,
        FindingName.VISIBLE_NOT_COMMITTED,
        FindingName.VISIBLE_WITHOUT_HALF,
    }
)

#: Findings of a missing record. The record may exist but be damaged.
UNRECORDED = frozenset(
    {
        FindingName.DECIDED_IN_PART,
        FindingName.OP_WITHOUT_HALF,
        FindingName.DECISION_WITHOUT_OP,
        FindingName.ROW_WITHOUT_HALF,
        FindingName.VISIBLE_NOT_COMMITTED,
        FindingName.VISIBLE_WITHOUT_HALF,
    }
)
