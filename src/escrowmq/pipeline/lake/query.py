"""Runs an SQL query on the lake and returns its result as plain values."""

from __future__ import annotations

import logging
import math
import re
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.sql import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUESTIONS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN")
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_WORD = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(\w*)", re.DOTALL)


class QueryResult(NamedTuple):
    """The result of a query."""

    columns: list[str]
    rows: list[list[Any]]
    #: Whether there are more rows.
    is_cut: bool


def query(spark: SparkSession, lake: Lake, sql: str, rows_max: int) -> QueryResult:
    """Run a query. Runs on the driver, which gets at most `rows_max` rows.

    Raises:
        RequestRefused: ``bad_query``, with Spark's message.
    """
    from pyspark.errors import PySparkException

    word = _first_word(sql)
    if word not in QUESTIONS:
        raise RequestRefused("bad_query", f"begin with one of {', '.join(QUESTIONS)}", word=word)
    register(spark, lake)
    for name in _LOGGERS:
        # These loggers would print the error and its stack trace.
        logging.getLogger(name).disabled = True
    try:
        frame = spark.sql(sql)
        rows = frame.limit(rows_max + 1).collect()
    except PySparkException as error:
        raise RequestRefused("bad_query", _first_line(str(error))) from None
    return QueryResult(
        columns=frame.columns,
        rows=[[plain(value) for value in row] for row in rows[:rows_max]],
        is_cut=len(rows) > rows_max,
    )


def plain(value: object) -> Any:  # noqa: ANN401 -- what JSON has
    """A value for JSON: bytes become text if they are valid UTF-8, otherwise hexadecimal."""
    if hasattr(value, "asDict"):
        # A Row is a tuple that knows its names.
        value = value.asDict()
    told: Any = value
    match value:
        case bytes() | bytearray():
            told = _text(bytes(value))
        case date():
            told = value.isoformat()
        case Decimal():
            told = str(value)
        case float() if not math.isfinite(value):
            # JSON has no NaN and no infinity.
            told = None
        case dict():
            told = {str(plain(name)): plain(held) for name, held in value.items()}
        case list() | tuple():
            told = [plain(held) for held in value]
    return told


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def _first_word(sql: str) -> str:
    found = _WORD.match(sql)
    return found[1].upper() if found else ""


def _first_line(text: str) -> str:
    """The first line of an error. Spark appends plans and stack traces."""
    line = text.strip().partition("\n")[0]
    return line.partition(" SQLSTATE:")[0].strip()
