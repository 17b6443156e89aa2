"""The meaning of each finding of an audit: its kind, its explanation and its remedy.

The report, the command line and ``docs/operate/audit.md`` use these texts.
"""

from __future__ import annotations

from escrowmq.pipeline.audit.findings import Breach, ComparedEvidence, FindingName, Meaning

_CHECK = "run `escrowmq store check` on the stopped broker's data, and keep that data"
_REBUILD = f"{_CHECK}; `escrowmq store repair` rebuilds the state table from the log"
_RESTART = "restart the broker: it corrects the state store from its log; find out what changed it"
_QUEUES = f"{_CHECK}; `escrowmq store repair` rebuilds the queues from the log"
_LAKE = "find out what else wrote to the lake table; archive that range again into a new table"

MEANINGS: dict[FindingName, Meaning] = {
    FindingName.DECIDED_TWICE: Meaning(
        Breach.DOUBLED,
        ComparedEvidence.RECORDS,
        "two op records decide the same half message in the same way",
        _CHECK,
    ),
    FindingName.DECIDED_BOTH_WAYS: Meaning(
        Breach.CONTRADICTORY,
        ComparedEvidence.RECORDS,
        "one op record commits the half message and another rolls it back",
        _CHECK,
    ),
    FindingName.DECIDED_IN_PART: Meaning(
        Breach.CONTRADICTORY,
        ComparedEvidence.RECORDS,
        "some half messages of the transaction are decided and others are not, or differently",
        _CHECK,
    ),
    FindingName.HALF_STORED_TWICE: Meaning(
        Breach.DOUBLED,
        ComparedEvidence.RECORDS,
        "two records hold a half message with the same half offset",
        _CHECK,
    ),
    FindingName.OP_WITHOUT_HALF: Meaning(
        Breach.PHANTOM,
        ComparedEvidence.RECORDS,
        "an op record decides a half message that the log does not have",
        _CHECK,
    ),
    FindingName.UNREADABLE: Meaning(
        Breach.LOST,
        ComparedEvidence.RECORDS,
        "bytes of the log are damaged, and their records cannot be read",
        f"{_CHECK}; `escrowmq store repair` removes the damaged part",
    ),
    FindingName.DECIDED_BY_FORCE: Meaning(
        Breach.FORCED,
        ComparedEvidence.RECORDS,
        "a person decided the transaction by force, whatever its ledger said",
        "compare the database with the effects of the messages, and correct one of them;"
        " `--since` leaves out cases that you have dealt with",
    ),
    FindingName.HALF_NOT_IN_TABLE: Meaning(
        Breach.LOST,
        ComparedEvidence.TABLE,
        "the log has the half message, but the state table does not",
        _REBUILD,
    ),
    FindingName.DECISION_FORGOTTEN: Meaning(
        Breach.LOST,
        ComparedEvidence.TABLE,
        "an op record decides the transaction, but the state table lists it as undecided",
        _REBUILD,
    ),
    FindingName.DECISION_WITHOUT_OP: Meaning(
        Breach.PHANTOM,
        ComparedEvidence.TABLE,
        "the state table lists the transaction as decided, but no readable op record decides it",
        _REBUILD,
    ),
    FindingName.TABLE_CONTRADICTS: Meaning(
        Breach.CONTRADICTORY,
        ComparedEvidence.TABLE,
        "the state table lists the opposite of the decision in the op record",
        _REBUILD,
    ),
    FindingName.TABLE_SPLITS: Meaning(
        Breach.CONTRADICTORY,
        ComparedEvidence.TABLE,
        "the state table lists a later request of an undecided transaction as a separate one",
        _REBUILD,
    ),
    FindingName.COUNT_DIFFERS: Meaning(
        Breach.CONTRADICTORY,
        ComparedEvidence.TABLE,
        "the state table and the records count different numbers of half messages",
        _REBUILD,
    ),
    FindingName.ROW_WITHOUT_HALF: Meaning(
        Breach.PHANTOM,
        ComparedEvidence.TABLE,
        "the state table has a half message whose record cannot be read from the log",
        _CHECK,
    ),
    FindingName.UNDECIDED_TOO_LONG: Meaning(
        Breach.STUCK,
        ComparedEvidence.TABLE,
        "the transaction is still undecided after the age at which it must be parked",
        "read in escrowmq status which process checks, then in its log, and decide it by hand",
    ),
    FindingName.STATE_STORE_LACKS: Meaning(
        Breach.LOST,
        ComparedEvidence.ROUNDS,
        "records and state table have the transaction as undecided, and the state store does not",
        _RESTART,
    ),
    FindingName.STATE_STORE_KEEPS: Meaning(
        Breach.PHANTOM,
        ComparedEvidence.ROUNDS,
        "the state store has the transaction as undecided, and records and state table do not",
        _RESTART,
    ),
    FindingName.COMMITTED_NOT_VISIBLE: Meaning(
        Breach.LOST,
        ComparedEvidence.VISIBLE,
        "the transaction is committed, but consumers cannot see all of its messages",
        _QUEUES,
    ),
    FindingName.VISIBLE_NOT_COMMITTED: Meaning(
        Breach.PHANTOM,
        ComparedEvidence.VISIBLE,
        "consumers can see a message of a transaction that is not committed",
        _QUEUES,
    ),
    FindingName.VISIBLE_TWICE: Meaning(
        Breach.DOUBLED,
        ComparedEvidence.VISIBLE,
        "consumers can see a message in more than one place",
        _QUEUES,
    ),
    FindingName.VISIBLE_WITHOUT_HALF: Meaning(
        Breach.PHANTOM,
        ComparedEvidence.VISIBLE,
        "consumers can see a transaction's message whose half message the log does not have",
        _QUEUES,
    ),
    FindingName.LAKE_MESSAGE_MISSING: Meaning(
        Breach.LOST,
        ComparedEvidence.LAKE,
        "a visible message that was archived is not in the lake",
        _LAKE,
    ),
    FindingName.LAKE_MESSAGE_DOUBLED: Meaning(
        Breach.DOUBLED,
        ComparedEvidence.LAKE,
        "the lake has a message more than once",
        _LAKE,
    ),
    FindingName.LAKE_MESSAGE_UNKNOWN: Meaning(
        Breach.PHANTOM,
        ComparedEvidence.LAKE,
        "the lake has a message that the queue does not have",
        _LAKE,
    ),
    FindingName.LAKE_DECISION_MISSING: Meaning(
        Breach.LOST,
        ComparedEvidence.LAKE,
        "an archived decision is not in the lake's life lines",
        _LAKE,
    ),
    FindingName.LAKE_DECISION_DOUBLED: Meaning(
        Breach.DOUBLED,
        ComparedEvidence.LAKE,
        "the lake's life lines have a decision more than once",
        _LAKE,
    ),
    FindingName.LAKE_DECISION_UNKNOWN: Meaning(
        Breach.PHANTOM,
        ComparedEvidence.LAKE,
        "the lake's life lines have a decision that the log does not have",
        _LAKE,
    ),
    FindingName.LAKE_CONTRADICTS: Meaning(
        Breach.CONTRADICTORY,
        ComparedEvidence.LAKE,
        "the lake's life lines have another decision than the op record",
        _LAKE,
    ),
    FindingName.LEDGER_CONTRADICTS: Meaning(
        Breach.CONTRADICTORY,
        ComparedEvidence.LEDGER,
        "the ledger says the opposite of the decision at the broker",
        "trust the database: find out who decided, and repeat or undo the effects of the messages",
    ),
    FindingName.LEDGER_ROW_MISSING: Meaning(
        Breach.PHANTOM,
        ComparedEvidence.LEDGER,
        "the transaction is committed, but its ledger has no row, and no janitor deleted one",
        "check whether the database was restored, or the transaction was committed by hand",
    ),
    FindingName.LEDGER_ROW_UNKNOWN: Meaning(
        Breach.LOST,
        ComparedEvidence.LEDGER,
        "the ledger says committed, but no audited broker has the transaction",
        "audit every broker that uses this ledger; if you did, the messages are lost",
    ),
    FindingName.BUSINESS_ROW_WITHOUT_MESSAGE: Meaning(
        Breach.LOST,
        ComparedEvidence.BUSINESS,
        "the row has no committed message with its key",
        "check whether the row was written outside a transaction block; send the message again",
    ),
    FindingName.BUSINESS_ROW_WITH_SEVERAL: Meaning(
        Breach.DOUBLED,
        ComparedEvidence.BUSINESS,
        "the row has more than one committed message with its key",
        "if a row has several events, name each with `--event`; if the message was sent again in a"
        " new transaction, consumers must treat both as one",
    ),
    FindingName.MESSAGE_WITHOUT_BUSINESS_ROW: Meaning(
        Breach.PHANTOM,
        ComparedEvidence.BUSINESS,
        "the committed message has no row with its key",
        "check whether the row was deleted or changed, or the transaction committed by hand",
    ),
    FindingName.ROUND_DIFFERS: Meaning(
        Breach.CONTRADICTORY,
        ComparedEvidence.ROUNDS,
        "the pipeline's last comparison of half and op records with the state store differs here",
        _REBUILD,
    ),
    FindingName.OFFSET_BEYOND_END: Meaning(
        Breach.CONTRADICTORY,
        ComparedEvidence.CONSUMERS,
        "the group has acknowledged more messages than the queue ever had",
        "set the group's offset back to the queue's end, or it will miss messages",
    ),
    FindingName.CONSUMER_STUCK: Meaning(
        Breach.STUCK,
        ComparedEvidence.CONSUMERS,
        "the group's next message has been visible for too long, and no consumer holds a message",
        "check that a consumer of the group is running, and read its log",
    ),
}
