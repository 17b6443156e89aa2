"""Audits of ledgers: which of them can be read, and which missing rows a sweep explains."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.client.ledger.table import SqlLedger
from escrowmq.pipeline.audit.compare_ledgers import find_ledgers
from escrowmq.pipeline.audit.ledger import ROWS, judged, without_swept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
TRANSACTIONS = (
    "broker_name string, half_offset bigint, transaction_id string, ledger string,"
    " producer_group string, stored_at_ms bigint, state_code int, decided_at_ms bigint,"
    " decided_by string"
)


def test_a_ledger_that_two_databases_have_is_not_compared(tmp_path: Path) -> None:
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in ("one", "copy", "other")}
    SqlLedger(urls["one"]).create()
    shutil.copy(tmp_path / "one.db", tmp_path / "copy.db")
    other = SqlLedger(urls["other"]).create()
    found = find_ledgers(urls)
    assert found.urls == {other: urls["other"]}
    assert {name: error.code for name, error in found.silent.items()} == {
        "one": "ledger_twice",
        "copy": "ledger_twice",
    }


def test_a_janitor_on_its_way_explains_rows_up_to_where_it_is(spark: SparkSession) -> None:
    # Decided one after another, one hour apart; the ids are in another order.
    committed = [("d", 0), ("a", 1), ("b", 2), ("c", 3), ("e", 4)]
    transactions = spark.createDataFrame(
        [
            ("broker", number, name, "uuid", "pay", 0, 1, number * HOUR_MS, "somebody")
            for name, number in committed
        ],
        TRANSACTIONS,
    )

    def rows(*names: str) -> list[tuple[str, str, str, int]]:
        return [("uuid", name, "committed", 0) for name in names]

    def missing(first: list[str], again: list[str]) -> set[str]:
        read, read_again = (spark.createDataFrame(rows(*some), ROWS) for some in (first, again))
        found = judged(transactions, read, from_ms=0)
        return {
            row.transaction_id for row in without_swept(found, transactions, read_again).collect()
        }

    # The janitor got as far as "c"; "d" is older than the swept rows, but was not reached yet.
    assert missing(["d", "e"], ["d", "e"]) == set()
    # The janitor passed while the ledger was read: "d" is gone at the second read.
    assert missing(["a", "d"], ["e"]) == set()
    # "a" was decided before "c" and has a lower id, so no sweep deleted "c" and left "a".
    assert missing(["a", "b", "d", "e"], ["a", "b", "d", "e"]) == {"c"}
