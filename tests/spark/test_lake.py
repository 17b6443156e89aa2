"""All readers read the lake's tables alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.archive.archiving import archive_once
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.sql import register
from escrowmq.pipeline.lake.tables import MESSAGES, PROGRESS, TABLES
from tests.unit.logged import facts
from tests.unit.pipeline.lake_rows import DAY_MS, MIDNIGHT_MS, message, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("topic", "date", "queue_offset", "body", "properties", "keys")

Rows = list[tuple[Any, ...]]


def with_spark(spark: SparkSession, lake: Lake) -> Rows:
    return [tuple(row) for row in lake.read(spark, MESSAGES).select(*COLUMNS).collect()]


def with_pandas(_: SparkSession, lake: Lake) -> Rows:
    frame = lake.open(MESSAGES).to_pandas(columns=list(COLUMNS))
    frame["properties"] = frame["properties"].map(lambda pairs: pairs and dict(pairs))
    return list(frame.itertuples(index=False, name=None))


def with_duckdb(_: SparkSession, lake: Lake) -> Rows:
    messages = lake.open(MESSAGES).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("messages", messages)
        rows: Rows = connection.sql(f"SELECT {', '.join(COLUMNS)} FROM messages").fetchall()
    return rows


READERS = [with_spark, with_pandas, with_duckdb]


def comparable(rows: Rows) -> list[tuple[Any, ...]]:
    return sorted(
        (topic, str(day), offset, bytes(body), *rest) for topic, day, offset, body, *rest in rows
    )


@pytest.mark.parametrize("reader", READERS)
def test_all_readers_see_the_same_rows(
    spark: SparkSession, tmp_path: Path, reader: Callable[[SparkSession, Lake], Rows]
) -> None:
    lake = Lake(tmp_path / "a lake")
    for offset, topic in enumerate(("T", "U", "%DLQ%group", "007")):
        rows = rows_of(
            MESSAGES,
            message(topic, 2 * offset, properties=[("k", "v=1;\u0000")], keys="a b"),
            message(topic, 2 * offset + 1, MIDNIGHT_MS + DAY_MS, body=b"\x00\xff"),
        )
        lake.append(MESSAGES, rows, lambda _: ())
    lake.open(MESSAGES).optimize.compact()
    lake.append(MESSAGES, rows_of(MESSAGES, message("T", 9)), lambda _: ())
    # Deleted rows are gone for every reader, even before their files are deleted.
    lake.open(MESSAGES).delete("topic = 'U'")

    first = {"k": "v=1;\u0000"}
    assert comparable(reader(spark, lake)) == sorted(
        [
            ("T", "2026-11-01", 0, b"body", first, "a b"),
            ("T", "2026-11-02", 1, b"\x00\xff", None, None),
            ("%DLQ%group", "2026-11-01", 4, b"body", first, "a b"),
            ("%DLQ%group", "2026-11-02", 5, b"\x00\xff", None, None),
            ("007", "2026-11-01", 6, b"body", first, "a b"),
            ("007", "2026-11-02", 7, b"\x00\xff", None, None),
            ("T", "2026-11-01", 9, b"body", None, None),
        ]
    )


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_a_table_that_is_not_there_yet_is_empty_and_has_its_columns(
    spark: SparkSession,
    tmp_path: Path,
    table: Any,  # noqa: ANN401 -- a LakeTable; its module imports pyarrow
) -> None:
    frame = Lake(tmp_path).read(spark, table)
    assert frame.columns == table.arrow_schema().names
    assert frame.collect() == []


def test_a_read_table_does_not_change_when_more_is_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    row = {"seen_at_ms": MIDNIGHT_MS, "consumer_group": "g", "queue_id": 0, "offset_after": 1}
    lake.append(PROGRESS, rows_of(PROGRESS, row), lambda _: ())
    frame = lake.read(spark, PROGRESS)
    lake.append(PROGRESS, rows_of(PROGRESS, row), lambda _: ())
    lake.open(PROGRESS).optimize.compact()
    assert frame.count() == 1
    assert lake.read(spark, PROGRESS).count() == 2


def test_a_place_without_a_lake_gives_empty_tables_and_is_told(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    register(spark, Lake(tmp_path / "misspelled"))
    assert spark.table("messages").count() == 0
    (told,) = facts(caplog, "lake_empty")
    assert told["lake"] == str(tmp_path / "misspelled")


def test_one_address_in_place_of_a_list_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match=r"bad_option: a list of addresses.*127.0.0.1:1"):
        archive_once(spark, "127.0.0.1:1", str(tmp_path / "lake"), str(tmp_path / "checkpoints"))
