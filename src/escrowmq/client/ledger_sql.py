"""The ledger's tables and statements, for each kind of database.  Text only: nothing runs here.

Statements take ``?`` for each parameter, and every parameter is text: drivers disagree about the
width of a number, and none about text.  A link puts its driver's own placeholder in.  Thousands of
names go as one text too, which the database takes apart: a parameter for each costs the driver more
than the look-up costs the database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from escrowmq.model.errors import RequestRefused

COMMITTED = "committed"
ROLLED_BACK = "rolled_back"

#: A transaction id, group, topic or message id is no longer than this in the database.
NAME_CHARACTERS_MAX = 255

_TEXT = {
    "sqlite": "text",
    "postgresql": f"varchar({NAME_CHARACTERS_MAX})",
}

# The database itself makes the UUID, so that a migration script can be kept in version control and
# still give each database a UUID of its own.
_NEW_UUID = {
    "sqlite": "lower(hex(randomblob(16)))",
    "postgresql": "replace(CAST(gen_random_uuid() AS varchar), '-', '')",
}

_KEEP_FIRST = "ON CONFLICT DO NOTHING"

VERSION = 2
"""Of the tables below.  Version 1 had no marks of sweeps."""

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
CREATE TABLE IF NOT EXISTS escrowmq_ledger_version (
    singleton integer NOT NULL PRIMARY KEY CHECK (singleton = 1),
    version integer NOT NULL,
    is_swept_unmarked integer NOT NULL
)""",
    # A ledger that is there already may have been swept by version 1, which left no marks.
    """\
INSERT INTO escrowmq_ledger_version (singleton, version, is_swept_unmarked)
SELECT 1, {version}, CASE WHEN EXISTS (SELECT 1 FROM escrowmq_ledger_id) THEN 1 ELSE 0 END
WHERE true {keep_first}""",
    "UPDATE escrowmq_ledger_version SET version = {version} WHERE version < {version}",
    """\
INSERT INTO escrowmq_ledger_id (singleton, ledger_uuid) VALUES (1, {new_uuid})
{keep_first}""",
    """\
CREATE TABLE IF NOT EXISTS escrowmq_ledger_swept (
    store_id {text} NOT NULL,
    epoch {text} NOT NULL,
    lineage text NOT NULL,
    log_end bigint NOT NULL,
    half_end bigint NOT NULL,
    PRIMARY KEY (store_id, epoch)
)""",
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


def are_names(texts: Collection[str]) -> bool:
    """Whether all of them are names; thousands are looked at as one."""
    lengths = set(map(len, texts))
    return (
        0 not in lengths
        and max(lengths, default=0) <= NAME_CHARACTERS_MAX
        and "".join(texts).isprintable()
    )


def ddl_statements(dialect: str) -> list[str]:
    """Return what makes the tables where they are missing, and changes nothing where they are."""
    if dialect not in _TEXT:
        raise unsupported(dialect)
    words = {
        "text": _TEXT[dialect],
        "new_uuid": _NEW_UUID[dialect],
        "keep_first": _KEEP_FIRST,
        "version": VERSION,
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
    #: Sets how long a transaction of ours may wait for a lock, and how long one statement of it
    #: may take, where the database can tell: ``{lock_ms}`` and ``{statement_ms}``.
    limits: str
    #: ledger_uuid, read_only, standby: whether this is the ledger, and whether it can be written.
    probe: str
    #: Many names as one parameter.
    pack: Callable[[Iterable[str]], str]
    #: Reads the rows of packed transactions.
    read: str
    #: The same, where the rows must not change before our transaction ends.
    read_locked: str
    #: Many transactions with their groups, as parameters.
    pack_pairs: Callable[[Mapping[str, str]], list[str]]
    #: Inserts fence rows for packed pairs, with the database's own time; what is there stays.
    fence: str
    #: Whether that statement gives back the rows that it inserted.
    is_fence_returned: bool
    #: Deletes the rows of one outcome, the first parameter, among packed transactions.
    delete: str
    #: Run before a fence, so that a crash cannot forget it.
    make_durable: tuple[str, ...]
    #: Run before the tables are made; two at once would disturb each other.
    exclude: tuple[str, ...]
    #: A row if there is a table for the rows, or for the version.
    has_rows_table: str
    has_version_table: str
    #: The database's clock, in milliseconds.
    now_ms: str


FORGET_UUID = "DELETE FROM escrowmq_ledger_id"

#: A number goes as text too: of a parameter cast to a number at once, asyncpg wants a number.
NUMBER_VALUE = "CAST(CAST(? AS text) AS bigint)"

_ROW = "transaction_id, producer_group, outcome"
_READ = f"SELECT {_ROW} FROM escrowmq_ledger WHERE transaction_id "
_FENCE = (
    f"INSERT INTO escrowmq_ledger ({_ROW}, written_at_ms)"
    f" SELECT asked.key, asked.value, '{ROLLED_BACK}', {{now_ms}} FROM "
)
_SQLITE_NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS integer)"
_PG_NOW_MS = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
_KEEP_ROW = " ON CONFLICT (transaction_id) DO NOTHING"
_DELETE = "DELETE FROM escrowmq_ledger WHERE outcome = ? AND transaction_id "

_SQLITE_PACKED = "IN (SELECT value FROM json_each(?))"
# A name is printable, so no line ends within one.
_PG_LINES = "string_to_array(CAST(? AS text), chr(10))"
_PG_PACKED = f"= ANY({_PG_LINES})"


def _in_json(names: Iterable[str]) -> str:
    return json.dumps(list(names))


def _pairs_in_json(pairs: Mapping[str, str]) -> list[str]:
    return [json.dumps(dict(pairs))]


def _in_lines(names: Iterable[str]) -> str:
    return "\n".join(names)


def _pairs_in_lines(pairs: Mapping[str, str]) -> list[str]:
    return [_in_lines(pairs), _in_lines(pairs.values())]


SQLITE = Dialect(
    name="sqlite",
    begin_read="BEGIN",
    # The write lock at once: a transaction that reads first and then wants to write fails without
    # waiting if somebody else wrote in between.
    begin_write="BEGIN IMMEDIATE",
    limits="PRAGMA busy_timeout = {lock_ms}",
    probe="SELECT ledger_uuid, query_only, 0 FROM escrowmq_ledger_id, pragma_query_only",
    pack=_in_json,
    read=_READ + _SQLITE_PACKED,
    read_locked=_READ + _SQLITE_PACKED,
    pack_pairs=_pairs_in_json,
    # Without "WHERE true" SQLite takes ON for that of a join.
    fence=_FENCE.format(now_ms=_SQLITE_NOW_MS) + "json_each(?) AS asked WHERE true" + _KEEP_ROW,
    # Builds from before 2021 have no RETURNING.
    is_fence_returned=False,
    delete=_DELETE + _SQLITE_PACKED,
    make_durable=(),
    exclude=(),
    has_rows_table="SELECT 1 FROM sqlite_master WHERE name = 'escrowmq_ledger'",
    has_version_table="SELECT 1 FROM sqlite_master WHERE name = 'escrowmq_ledger_version'",
    now_ms=f"SELECT {_SQLITE_NOW_MS}",
)

POSTGRESQL = Dialect(
    name="postgresql",
    # At REPEATABLE READ the row that a fence collides with would be invisible to the read after it.
    begin_read="SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    begin_write="SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    # And always by the index: for thousands of ids the planner would rather read half a million
    # rows, since it takes every page to be on a slow disk.
    limits=(
        "SELECT set_config('lock_timeout', '{lock_ms}', true),"
        " set_config('statement_timeout', '{statement_ms}', true),"
        " set_config('enable_seqscan', 'off', true)"
    ),
    probe=(
        "SELECT ledger_uuid, current_setting('transaction_read_only') = 'on', pg_is_in_recovery()"
        " FROM escrowmq_ledger_id"
    ),
    pack=_in_lines,
    read=_READ + _PG_PACKED,
    read_locked=_READ + _PG_PACKED + " FOR SHARE",
    pack_pairs=_pairs_in_lines,
    # In the order of the parameters: two that fence the same transactions take turns.
    fence=_FENCE.format(now_ms=_PG_NOW_MS)
    + f"unnest({_PG_LINES}, {_PG_LINES}) AS asked (key, value)"
    + _KEEP_ROW
    + f" RETURNING {_ROW}",
    # To lock rows that we have just inserted would write each of them once more.
    is_fence_returned=True,
    delete=_DELETE + _PG_PACKED,
    # "off" would let a crash forget a fence that was acted on; any other setting is strong enough.
    make_durable=(
        (
            "SELECT set_config('synchronous_commit', 'on', true)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        ),
    ),
    # "CREATE TABLE IF NOT EXISTS" fails when two run at once; the number is ours alone.
    exclude=("SELECT pg_advisory_xact_lock(7307199748510379341)",),
    has_rows_table="SELECT 1 WHERE to_regclass('escrowmq_ledger') IS NOT NULL",
    has_version_table="SELECT 1 WHERE to_regclass('escrowmq_ledger_version') IS NOT NULL",
    now_ms=f"SELECT {_PG_NOW_MS}",
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
        "use SQLite or PostgreSQL, through SQLAlchemy 2, sqlite3, aiosqlite, psycopg 3 or asyncpg",
        kind=name,
    )


def not_for_with(database: object) -> RequestRefused:
    """Make the refusal of what a `with` block cannot take, such as an async session."""
    return _not_for_block(
        database,
        "`with` takes a session or connection of SQLAlchemy, sqlite3 or psycopg that is not async;"
        " an async one needs `async with` and an AsyncProducer",
    )


def not_for_async_with(database: object) -> RequestRefused:
    """Make the refusal of what an `async with` block cannot take, such as a plain session."""
    return _not_for_block(
        database,
        "`async with` takes an async session or connection of SQLAlchemy, or a connection of"
        " aiosqlite, asyncpg or psycopg's AsyncConnection; others need `with` and a Producer",
    )


def _not_for_block(database: object, why: str) -> RequestRefused:
    kind = type(database)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return RequestRefused("database_unsupported", why, kind=name)


# Not "AS varchar(255)": that would cut what is too long instead of refusing it.
_NAME_VALUE = "CAST(? AS text)"

# Guarded by the ledger's UUID: in another database it inserts nothing, and the count says so.
INSERT_COMMITTED = (
    "INSERT INTO escrowmq_ledger (transaction_id, producer_group, outcome, written_at_ms)"
    f" SELECT {_NAME_VALUE}, {_NAME_VALUE}, '{COMMITTED}', {NUMBER_VALUE}"
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
    f" VALUES (?, ?, ?, {NUMBER_VALUE}, 0) ON CONFLICT DO NOTHING"
)
READ_CONSUMED = f"SELECT body_checksum, consumed_at_ms FROM escrowmq_consumed WHERE {_THIS_MESSAGE}"
FINISH_CONSUMED = (
    f"UPDATE escrowmq_consumed SET consumed_at_ms = {NUMBER_VALUE}"
    f" WHERE {_THIS_MESSAGE} AND consumed_at_ms = 0"
)
PG_MARK = "SELECT set_config('escrowmq.transaction', ?, true)"
PG_FINISH_CONSUMED = FINISH_CONSUMED + " AND current_setting('escrowmq.transaction', true) = ?"
FORGET_CONSUMED = (
    f"DELETE FROM escrowmq_consumed WHERE consumed_at_ms > 0 AND consumed_at_ms < {NUMBER_VALUE}"
)


READ_VERSION = "SELECT version, is_swept_unmarked FROM escrowmq_ledger_version"
READ_MARKS = "SELECT lineage, log_end, half_end FROM escrowmq_ledger_swept ORDER BY lineage"
# A mark only moves forward: of two sweeps at a time the later position stays.
WRITE_MARK = (
    "INSERT INTO escrowmq_ledger_swept (store_id, epoch, lineage, log_end, half_end)"
    f" VALUES ({_NAME_VALUE}, {_NAME_VALUE}, {_NAME_VALUE}, {NUMBER_VALUE}, {NUMBER_VALUE})"
    " ON CONFLICT (store_id, epoch) DO UPDATE SET lineage = excluded.lineage,"
    " log_end = excluded.log_end, half_end = excluded.half_end"
    " WHERE excluded.log_end > escrowmq_ledger_swept.log_end"
)
DROP_MARK = (
    "DELETE FROM escrowmq_ledger_swept WHERE store_id = ? AND epoch = ?"
    f" AND log_end = {NUMBER_VALUE}"
)

#: A page of the whole table, by id.
PAGE_SQL = (
    "SELECT transaction_id, outcome, written_at_ms FROM escrowmq_ledger"
    " WHERE transaction_id > ? ORDER BY transaction_id LIMIT {limit}"
)
