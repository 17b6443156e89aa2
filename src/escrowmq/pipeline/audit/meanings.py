"""The meaning of each finding of an audit: its kind, its explanation and its remedy.

The report, the command line and ``docs/operate/audit.md`` use these texts.
"""

from __future__ import annotations

from typing import NamedTuple

from escrowmq.pipeline.audit.findings import Compared, Finding, Kind


class Meaning(NamedTuple):
    """The meaning of a finding."""

    kind: Kind
    compared: Compared
    #: One line for the report.
    about: str
    #: The operator's next step.
    remedy: str


_CHECK = "run `escrowmq store check` on the stopped broker's data, and keep that data"
_REBUILD = f"{_CHECK}; `escrowmq store repair` makes the state table anew from the log"
_QUEUES = f"{_CHECK}; `escrowmq store repair` makes the queues anew from the log"
_LAKE = "find out who else wrote to the lake table; archive that range again into a new one"

MEANINGS: dict[Finding, Meaning] = {
    Finding.DECIDED_TWICE: Meaning(
        Kind.DOUBLED,
        Compared.RECORDS,
        "two op records decide the same half message alike",
        _CHECK,
    ),
    Finding.DECIDED_BOTH_WAYS: Meaning(
        Kind.CONTRADICTORY,
        Compared.RECORDS,
        "one op record commits the half message and another rolls it back",
        _CHECK,
    ),
    Finding.DECIDED_IN_PART: Meaning(
        Kind.CONTRADICTORY,
        Compared.RECORDS,
        "some half messages of the transaction are decided and others are not, or not alike",
        _CHECK,
    ),
    Finding.HALF_STORED_TWICE: Meaning(
        Kind.DOUBLED,
        Compared.RECORDS,
        "two records bring a half message with the same half offset",
        _CHECK,
    ),
    Finding.OP_WITHOUT_HALF: Meaning(
        Kind.PHANTOM,
        Compared.RECORDS,
        "an op record decides a half message that the log does not have",
        _CHECK,
    ),
    Finding.UNREADABLE: Meaning(
        Kind.LOST,
        Compared.RECORDS,
        "bytes of the log are damaged, and nobody can read what they said",
        f"{_CHECK}; `escrowmq store repair` takes the damage out",
    ),
    Finding.DECIDED_BY_FORCE: Meaning(
        Kind.FORCED,
        Compared.RECORDS,
        "a person decided the transaction by force, whatever its ledger said",
        "compare the database with what its messages did, and correct one of them;"
        " `--since` leaves out what is done with",
    ),
    Finding.HALF_NOT_IN_TABLE: Meaning(
        Kind.LOST,
        Compared.TABLE,
        "the log has the half message and the state table does not",
        _REBUILD,
    ),
    Finding.DECISION_FORGOTTEN: Meaning(
        Kind.LOST,
        Compared.TABLE,
        "an op record decides the transaction and the state table has it as undecided",
        _REBUILD,
    ),
    Finding.DECISION_WITHOUT_OP: Meaning(
        Kind.PHANTOM,
        Compared.TABLE,
        "the state table has the transaction as decided and no op record can be read that says so",
        _REBUILD,
    ),
    Finding.TABLE_CONTRADICTS: Meaning(
        Kind.CONTRADICTORY,
        Compared.TABLE,
        "the state table has the opposite of what the op record says",
        _REBUILD,
    ),
    Finding.TABLE_SPLITS: Meaning(
        Kind.CONTRADICTORY,
        Compared.TABLE,
        "the state table lists a later request of an undecided transaction on its own",
        _REBUILD,
    ),
    Finding.COUNT_DIFFERS: Meaning(
        Kind.CONTRADICTORY,
        Compared.TABLE,
        "the state table counts other half messages than the records bring",
        _REBUILD,
    ),
    Finding.ROW_WITHOUT_HALF: Meaning(
        Kind.PHANTOM,
        Compared.TABLE,
        "the state table has a half message whose record cannot be read from the log",
        _CHECK,
    ),
    Finding.UNDECIDED_TOO_LONG: Meaning(
        Kind.STUCK,
        Compared.TABLE,
        "the transaction is undecided past the age at which it must be parked",
        "is a pipeline running? Look at its log, then settle the transaction by hand",
    ),
    Finding.COMMITTED_NOT_VISIBLE: Meaning(
        Kind.LOST,
        Compared.VISIBLE,
        "the transaction is committed and consumers cannot see all of its messages",
        _QUEUES,
    ),
    Finding.VISIBLE_NOT_COMMITTED: Meaning(
        Kind.PHANTOM,
        Compared.VISIBLE,
        "consumers can see a message of a transaction that is not committed",
        _QUEUES,
    ),
    Finding.VISIBLE_TWICE: Meaning(
        Kind.DOUBLED,
        Compared.VISIBLE,
        "consumers can see a message in more than one place",
        _QUEUES,
    ),
    Finding.VISIBLE_WITHOUT_HALF: Meaning(
        Kind.PHANTOM,
        Compared.VISIBLE,
        "consumers can see a transaction's message whose half message the log does not have",
        _QUEUES,
    ),
    Finding.LAKE_MESSAGE_MISSING: Meaning(
        Kind.LOST,
        Compared.LAKE,
        "a visible message that was archived is not in the lake",
        _LAKE,
    ),
    Finding.LAKE_MESSAGE_DOUBLED: Meaning(
        Kind.DOUBLED,
        Compared.LAKE,
        "the lake has a message more than once",
        _LAKE,
    ),
    Finding.LAKE_MESSAGE_UNKNOWN: Meaning(
        Kind.PHANTOM,
        Compared.LAKE,
        "the lake has a message that the queue does not have",
        _LAKE,
    ),
    Finding.LAKE_DECISION_MISSING: Meaning(
        Kind.LOST,
        Compared.LAKE,
        "an archived decision is not in the lake's life lines",
        _LAKE,
    ),
    Finding.LAKE_DECISION_DOUBLED: Meaning(
        Kind.DOUBLED,
        Compared.LAKE,
        "the lake's life lines have a decision more than once",
        _LAKE,
    ),
    Finding.LAKE_DECISION_UNKNOWN: Meaning(
        Kind.PHANTOM,
        Compared.LAKE,
        "the lake's life lines have a decision that the log does not have",
        _LAKE,
    ),
    Finding.LAKE_CONTRADICTS: Meaning(
        Kind.CONTRADICTORY,
        Compared.LAKE,
        "the lake's life lines have another decision than the op record",
        _LAKE,
    ),
    Finding.LEDGER_CONTRADICTS: Meaning(
        Kind.CONTRADICTORY,
        Compared.LEDGER,
        "the ledger has the opposite of what the broker decided",
        "the database is right: look who decided, and repeat or undo what its messages did",
    ),
    Finding.LEDGER_ROW_MISSING: Meaning(
        Kind.PHANTOM,
        Compared.LEDGER,
        "the transaction is committed, its ledger has no row for it, and no janitor took one",
        "was the database restored from a backup, or the transaction committed by hand?",
    ),
    Finding.LEDGER_ROW_UNKNOWN: Meaning(
        Kind.LOST,
        Compared.LEDGER,
        "the ledger says committed and no broker that was audited has the transaction",
        "name every broker that uses this ledger; if that was so, its messages are lost",
    ),
    Finding.BUSINESS_ROW_WITHOUT_MESSAGE: Meaning(
        Kind.LOST,
        Compared.BUSINESS,
        "the row has no committed message with its key",
        "was the row written outside a transaction of ours? Send the message once more",
    ),
    Finding.BUSINESS_ROW_WITH_SEVERAL: Meaning(
        Kind.DOUBLED,
        Compared.BUSINESS,
        "the row has more than one committed message with its key",
        "does a row have several events? Name each with `--event`. Was it sent again under a new"
        " transaction? Consumers must take both for one",
    ),
    Finding.MESSAGE_WITHOUT_BUSINESS_ROW: Meaning(
        Kind.PHANTOM,
        Compared.BUSINESS,
        "the committed message has no row with its key",
        "was the row deleted or changed since, or the transaction committed by hand?",
    ),
    Finding.OFFSET_BEYOND_END: Meaning(
        Kind.CONTRADICTORY,
        Compared.CONSUMERS,
        "the group has acknowledged more than the queue ever had",
        "set the group's offset back to the queue's end, or it will miss messages",
    ),
    Finding.CONSUMER_STUCK: Meaning(
        Kind.STUCK,
        Compared.CONSUMERS,
        "the group's next message has been visible for too long",
        "is a consumer of the group running? Look at its log",
    ),
}
