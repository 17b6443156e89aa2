"""The ledger's tables and statements, for each kind of database.  Text only: nothing runs here.

Statements take ``?`` for each parameter, and every parameter is text: drivers disagree about the
width of a number, and none about text.  A link puts its driver's own placeholder in.
"""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.model.errors import RequestRefused

COMMITTED = "committed"
ROLLED_BACK = "rolled_back"

#: A transaction id, group, topic or message id is no longer than this in the database.
NAME_CHARACTERS_MAX = 255

# MySQL compares text without regard to case unless told otherwise; two ids must never be equal
# that differ in case.
_TEXT = {
    "sqlite": "text",
    "postgresql": f"varchar({NAME_CHARACTERS_MAX})",
    "mysql": f"varchar({NAME_CHARACTERS_MAX}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}

# The database itself makes the UUID, so that a migration script can be kept in version control and
# still give each database a UUID of its own.
_NEW_UUID = {
    "sqlite": "lower(hex(randomblob(16)))",
    "postgresql": "replace(CAST(gen_random_uuid() AS varchar), '-', '')",
    "mysql": "replace(uuid(), '-', '')",
}

_KEEP_FIRST = {
    "sqlite": "ON CONFLICT DO NOTHING",
    "postgresql": "ON CONFLICT DO NOTHING",
    "mysql": "ON DUPLICATE KEY UPDATE singleton = singleton",
}

_TABLES = (
    """\
CREATE TABLE IF NOT EXISTS escrowmq_ledger (
    transaction_id {text} NOT NULL PRIMARY KEY,
    producer_group {text} NOT NULL,
    outcome {text} NOT NULL,
    written_at_ms bigint NOT NULL
)""",
    """\
CREATE TABLE IF NOT EXISTS escrowmq_ledger_id (
    singleton integer NOT NULL PRIMARY KEY CHECK (singleton = 1),
    ledger_uuid {text} NOT NULL
)""",
    """\
INSERT INTO escrowmq_ledger_id (singleton, ledger_uuid) VALUES (1, {new_uuid})
{keep_first}""",
    """\
CREATE TABLE IF NOT EXISTS escrowmq_consumed (
    consumer_group {text} NOT NULL,
    topic {text} NOT NULL,
    message_id {text} NOT NULL,
    body_checksum bigint NOT NULL,
    consumed_at_ms bigint NOT NULL,
    PRIMARY KEY (consumer_group, topic, message_id)
)""",
)


def is_name(text: str) -> bool:
    """Whether an id or a group can be kept in the ledger and found again."""
    # Among what is not printable are NUL, which PostgreSQL has no text with, and half characters.
    return 0 < len(text) <= NAME_CHARACTERS_MAX and text.isprintable()


def ddl_statements(dialect: str) -> list[str]:
    """Return what makes the tables where they are missing, and changes nothing where they are."""
    if dialect not in _TEXT:
        raise unsupported(dialect)
    words = {
        "text": _TEXT[dialect],
        "new_uuid": _NEW_UUID[dialect],
        "keep_first": _KEEP_FIRST[dialect],
    }
    return [statement.format(**words) for statement in _TABLES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one kind of database is spoken to."""

    name: str
    #: The first statement of a transaction of ours that only reads.
    begin_read: str
    #: The first statement of one that writes.
    begin_write: str
    #: How long a transaction of ours may wait for a lock; one parameter, in ms.
    wait: str
    #: ledger_uuid, read_only, standby: whether this is the ledger, and whether it can be written.
    probe: str
    #: Appended to a read whose rows must not change before our transaction ends.
    locking: str
    #: Run before a fence, so that a crash cannot forget it.
    make_durable: tuple[str, ...]
    #: Run before the tables are made; two at once would disturb each other.
    exclude: tuple[str, ...]


SQLITE = Dialect(
    name="sqlite",
    begin_read="BEGIN",
    # The write lock at once: a transaction that reads first and then wants to write fails without
    # waiting if somebody else wrote in between.
    begin_write="BEGIN IMMEDIATE",
    wait="PRAGMA busy_timeout = {}",
    probe="SELECT ledger_uuid, query_only, 0 FROM escrowmq_ledger_id, pragma_query_only",
    locking="",
    make_durable=(),
    exclude=(),
)

POSTGRESQL = Dialect(
    name="postgresql",
    # At REPEATABLE READ the row that a fence collides with would be invisible to the read after it.
    begin_read="SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    begin_write="SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    wait="SET LOCAL lock_timeout = {}",
    probe=(
        "SELECT ledger_uuid, current_setting('transaction_read_only') = 'on', pg_is_in_recovery()"
        " FROM escrowmq_ledger_id"
    ),
    locking=" FOR SHARE",
    # "off" would let a crash forget a fence that was acted on; any other setting is strong enough.
    make_durable=(
        (
            "SELECT set_config('synchronous_commit', 'on', true)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        ),
    ),
    # "CREATE TABLE IF NOT EXISTS" fails when two run at once; the number is ours alone.
    exclude=("SELECT pg_advisory_xact_lock(7307199748510379341)",),
)

DIALECTS = {dialect.name: dialect for dialect in (SQLITE, POSTGRESQL)}


def dialect_of(name: str) -> Dialect:
    """Return the dialect, or refuse a database that the ledger was never tried on."""
    if name not in DIALECTS:
        raise unsupported(name)
    return DIALECTS[name]


def unsupported(name: str) -> RequestRefused:
    """Make the refusal of a kind of database or connection that we cannot answer for."""
    return RequestRefused(
        "database_unsupported",
        "use SQLite or PostgreSQL, through SQLAlchemy 2, sqlite3, aiosqlite or psycopg 3",
        kind=name,
    )


# Not "AS varchar(255)": that would cut what is too long instead of refusing it.
_NAME_VALUE = "CAST(? AS text)"

# Guarded by the ledger's UUID: in another database it inserts nothing, and the count says so.
INSERT_COMMITTED = (
    "INSERT INTO escrowmq_ledger (transaction_id, producer_group, outcome, written_at_ms)"
    f" SELECT {_NAME_VALUE}, {_NAME_VALUE}, '{COMMITTED}', CAST(? AS bigint)"
    f" FROM escrowmq_ledger_id WHERE ledger_uuid = {_NAME_VALUE}"
)

# A setting that PostgreSQL forgets at COMMIT and ROLLBACK: while it is there, the transaction is
# still the one that the block began with.
PG_PROBE_AND_MARK = POSTGRESQL.probe.replace(
    " FROM", ", set_config('escrowmq.transaction', ?, true) FROM"
)
PG_READ_MARK = "SELECT current_setting('escrowmq.transaction', true)"
PG_INSERT_MARKED = INSERT_COMMITTED + (
    f" AND current_setting('escrowmq.transaction', true) = {_NAME_VALUE}"
)

# A savepoint does the same for SQLite: RELEASE fails where a COMMIT or ROLLBACK has taken it away.
SQLITE_MARK = "SAVEPOINT escrowmq_block"
SQLITE_UNMARK = "RELEASE SAVEPOINT escrowmq_block"

# A message that was consumed.  The row is there from the block's first statement on, so that a
# second delivery waits for the first; a time of 0 says that the block has not come to its end.
_THIS_MESSAGE = "consumer_group = ? AND topic = ? AND message_id = ?"
INSERT_CONSUMED = (
    "INSERT INTO escrowmq_consumed"
    " (consumer_group, topic, message_id, body_checksum, consumed_at_ms)"
    " VALUES (?, ?, ?, CAST(? AS bigint), 0) ON CONFLICT DO NOTHING"
)
READ_CONSUMED = f"SELECT body_checksum, consumed_at_ms FROM escrowmq_consumed WHERE {_THIS_MESSAGE}"
FINISH_CONSUMED = (
    "UPDATE escrowmq_consumed SET consumed_at_ms = CAST(? AS bigint)"
    f" WHERE {_THIS_MESSAGE} AND consumed_at_ms = 0"
)
PG_MARK = "SELECT set_config('escrowmq.transaction', ?, true)"
PG_FINISH_CONSUMED = FINISH_CONSUMED + " AND current_setting('escrowmq.transaction', true) = ?"
FORGET_CONSUMED = (
    "DELETE FROM escrowmq_consumed WHERE consumed_at_ms > 0 AND consumed_at_ms < CAST(? AS bigint)"
)


def fence_sql(count: int) -> str:
    """Insert ``count`` fence rows: id, group and time each; what is there already stays."""
    rows = ", ".join([f"(?, ?, '{ROLLED_BACK}', CAST(? AS bigint))"] * count)
    return (
        "INSERT INTO escrowmq_ledger (transaction_id, producer_group, outcome, written_at_ms)"
        f" VALUES {rows} ON CONFLICT (transaction_id) DO NOTHING"
    )


def read_sql(count: int, locking: str = "") -> str:
    """Read the rows of ``count`` transactions."""
    return (
        "SELECT transaction_id, producer_group, outcome FROM escrowmq_ledger"
        f" WHERE transaction_id IN ({_marks(count)}){locking}"
    )


#: A page of the whole table, by id.
PAGE_SQL = (
    "SELECT transaction_id, outcome, written_at_ms FROM escrowmq_ledger"
    " WHERE transaction_id > ? ORDER BY transaction_id LIMIT {limit}"
)


def delete_sql(count: int) -> str:
    """Delete the rows of one outcome, the first parameter, among ``count`` transactions."""
    return f"DELETE FROM escrowmq_ledger WHERE outcome = ? AND transaction_id IN ({_marks(count)})"


def _marks(count: int) -> str:
    return ", ".join("?" * count)
