"""The ledger's tables and statements for each kind of database. Text only: nothing runs here.

Statements have ``?`` for each parameter, and every parameter is text, because drivers disagree
about the width of numbers but not about text. An adapter puts its driver's placeholder there.
Thousands of names are passed as one text, which the database splits: one parameter per name would
cost the driver more than the lookup costs the database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from escrowmq.model.errors import RequestRefused
from escrowmq.model.ledger_outcome import LedgerOutcome

COMMITTED = LedgerOutcome.COMMITTED.value
ROLLED_BACK = LedgerOutcome.ROLLED_BACK.value

#: Maximum length of a transaction id, group, topic or message id in the database.
NAME_CHARACTERS_MAX = 255

_TEXT = {"sqlite": "text", "postgresql": f"varchar({NAME_CHARACTERS_MAX})"}

# The database generates the UUID, so that a migration script in version control still gives each
# database its own UUID.
_NEW_UUID = {
    "sqlite": "lower(hex(randomblob(16)))",
    "postgresql": "replace(CAST(gen_random_uuid() AS varchar), '-', '')",
}

_KEEP_FIRST = "ON CONFLICT DO NOTHING"

VERSION = 2
"""Version of the tables below. Version 1 had no marks of sweeps."""

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
    # An existing ledger may have been swept by version 1, which left no marks.
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
    """Whether the ledger can store an id or a group and find it again."""
    # isprintable() also excludes NUL, which PostgreSQL text cannot hold, and lone surrogates.
    return 0 < len(text) <= NAME_CHARACTERS_MAX and text.isprintable()


def are_names(texts: Collection[str]) -> bool:
    """Whether all texts are names; thousands are checked in one pass."""
    lengths = set(map(len, texts))
    return (
        0 not in lengths
        and max(lengths, default=0) <= NAME_CHARACTERS_MAX
        and "".join(texts).isprintable()
    )


def ddl_statements(dialect: str) -> list[str]:
    """Return the statements that create missing tables and leave existing ones unchanged."""
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
    """The SQL of one kind of database."""

    name: str
    #: The first statement of a transaction of ours that only reads.
    begin_read: str
    #: The first statement of a transaction of ours that writes.
    begin_write: str
    #: Sets the lock timeout of a transaction of ours and, where the database supports it, the
    #: statement timeout: ``{lock_ms}`` and ``{statement_ms}``.
    limits: str
    #: Returns ledger_uuid, read_only and standby: which ledger this is, and whether it is writable.
    probe: str
    #: Packs many names into one parameter.
    pack: Callable[[Iterable[str]], str]
    #: Reads the rows of packed transactions.
    read: str
    #: The same; no other transaction can change the rows until ours ends.
    read_locked: str
    #: Packs many transactions with their groups into parameters.
    pack_pairs: Callable[[Mapping[str, str]], list[str]]
    #: Inserts fence rows for packed pairs, with the database's time; existing rows stay.
    fence: str
    #: Whether ``fence`` returns the rows that it inserted.
    is_fence_returned: bool
    #: Deletes the rows of packed transactions that have one outcome, the first parameter.
    delete: str
    #: Runs before a fence, so that a crash after COMMIT cannot lose the fence.
    make_durable: tuple[str, ...]
    #: Runs before the tables are created, so that two creations do not collide.
    exclude: tuple[str, ...]
    #: Returns a row if the table of the rows, or of the version, exists.
    has_rows_table: str
    has_version_table: str
    #: The database's clock, in milliseconds.
    now_ms: str


FORGET_UUID = "DELETE FROM escrowmq_ledger_id"

#: Numbers are passed as text too. With a direct cast to a number, asyncpg would require an int.
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
# Newlines separate packed names: a name is printable, so it contains none.
_PG_LINES = "string_to_array(CAST(? AS text), chr(10))"
_PG_PACKED = f"= ANY({_PG_LINES})"


_in_lines = "\n".join

SQLITE = Dialect(
    name="sqlite",
    begin_read="BEGIN",
    # Take the write lock at once: a transaction that reads first and then writes fails without
    # waiting if another connection wrote in between.
    begin_write="BEGIN IMMEDIATE",
    limits="PRAGMA busy_timeout = {lock_ms}",
    probe="SELECT ledger_uuid, query_only, 0 FROM escrowmq_ledger_id, pragma_query_only",
    pack=lambda names: json.dumps(list(names)),
    read=_READ + _SQLITE_PACKED,
    read_locked=_READ + _SQLITE_PACKED,
    pack_pairs=lambda pairs: [json.dumps(dict(pairs))],
    # Without "WHERE true", SQLite parses ON as part of a join.
    fence=_FENCE.format(now_ms=_SQLITE_NOW_MS) + "json_each(?) AS asked WHERE true" + _KEEP_ROW,
    # SQLite builds from before 2021 have no RETURNING.
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
    # Sequential scans are off. For thousands of ids the planner would scan half a million rows
    # instead of using the index, because it assumes that every page is on a slow disk.
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
    pack_pairs=lambda pairs: [_in_lines(pairs), _in_lines(pairs.values())],
    # Inserts in parameter order, so that two fences of the same rows wait instead of deadlocking.
    fence=_FENCE.format(now_ms=_PG_NOW_MS)
    + f"unnest({_PG_LINES}, {_PG_LINES}) AS asked (key, value)"
    + _KEEP_ROW
    + f" RETURNING {_ROW}",
    # Locking the rows that we have just inserted would write each of them again.
    is_fence_returned=True,
    delete=_DELETE + _PG_PACKED,
    # With the setting off, a crash could lose a fence that was acted on. Other values are safe.
    make_durable=(
        (
            "SELECT set_config('synchronous_commit', 'on', true)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        ),
    ),
    # "CREATE TABLE IF NOT EXISTS" can fail when two run at once. The number only names our lock.
    exclude=("SELECT pg_advisory_xact_lock(7307199748510379341)",),
    has_rows_table="SELECT 1 WHERE to_regclass('escrowmq_ledger') IS NOT NULL",
    has_version_table="SELECT 1 WHERE to_regclass('escrowmq_ledger_version') IS NOT NULL",
    now_ms=f"SELECT {_PG_NOW_MS}",
)

DIALECTS = {dialect.name: dialect for dialect in (SQLITE, POSTGRESQL)}


def dialect_of(name: str) -> Dialect:
    """Return the dialect, or refuse a database that the ledger was never tested on."""
    if name not in DIALECTS:
        raise unsupported(name)
    return DIALECTS[name]


def unsupported(name: str) -> RequestRefused:
    """Return the refusal for an unsupported kind of database or connection."""
    return RequestRefused(
        "database_unsupported",
        "use SQLite or PostgreSQL, through SQLAlchemy 2, sqlite3, aiosqlite, psycopg 3 or asyncpg",
        kind=name,
    )


def not_for_with(database: object) -> RequestRefused:
    """Return the refusal for an object that `with` cannot use, such as an async session."""
    return _not_for_block(
        database,
        "`with` takes a session or connection of SQLAlchemy, sqlite3 or psycopg that is not async;"
        " an async one needs `async with` and an AsyncProducer",
    )


def not_for_async_with(database: object) -> RequestRefused:
    """Return the refusal for an object that `async with` cannot use, such as a sync session."""
    return _not_for_block(
        database,
        "`async with` takes an async session or connection of SQLAlchemy, or a connection of"
        " aiosqlite, asyncpg or psycopg's AsyncConnection; others need `with` and a Producer",
    )


def _not_for_block(database: object, why: str) -> RequestRefused:
    kind = type(database)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return RequestRefused("database_unsupported", why, kind=name)


# Not "AS varchar(255)", which would truncate a long value instead of refusing it.
_NAME_VALUE = "CAST(? AS text)"

# Guarded by the ledger's UUID: in another database this inserts 0 rows, as the row count shows.
INSERT_COMMITTED = (
    "INSERT INTO escrowmq_ledger (transaction_id, producer_group, outcome, written_at_ms)"
    f" SELECT {_NAME_VALUE}, {_NAME_VALUE}, '{COMMITTED}', {NUMBER_VALUE}"
    f" FROM escrowmq_ledger_id WHERE ledger_uuid = {_NAME_VALUE}"
)

# PostgreSQL drops this setting at COMMIT and ROLLBACK. While it is set, the transaction is still
# the one that the block began with.
PG_PROBE_AND_MARK = POSTGRESQL.probe.replace(
    " FROM", ", set_config('escrowmq.transaction', ?, true) FROM"
)
PG_READ_MARK = "SELECT current_setting('escrowmq.transaction', true)"
PG_INSERT_MARKED = INSERT_COMMITTED + (
    f" AND current_setting('escrowmq.transaction', true) = {_NAME_VALUE}"
)

# A savepoint does the same for SQLite: RELEASE fails after a COMMIT or ROLLBACK has removed it.
SQLITE_MARK = "SAVEPOINT escrowmq_block"
SQLITE_UNMARK = "RELEASE SAVEPOINT escrowmq_block"

# The row of a consumed message exists from the block's first statement on, so that a second
# delivery waits for the first. Its time is 0 until the end of the block.
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
# A mark only moves forward: if two sweeps race, the later position stays.
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

#: One page of the whole table, ordered by id.
PAGE_SQL = (
    "SELECT transaction_id, outcome, written_at_ms FROM escrowmq_ledger"
    " WHERE transaction_id > ? ORDER BY transaction_id LIMIT {limit}"
)
