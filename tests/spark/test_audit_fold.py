"""The fold by ranges finds the same as plain joins, whatever is wrong."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from escrowmq.pipeline.audit import joins as audit
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.ranges import COUNT, FINDING, PART_OF, fold_ranges
from escrowmq.pipeline.audit.records import within_horizon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

HALVES = "broker_name string, first bigint, head bigint, message_count int, is_copy boolean"
OPS = "broker_name string, first bigint, message_count int, state_code int"
TRANSACTIONS = "broker_name string, half_offset bigint, message_count bigint, state_code int"
VISIBLE = "broker_name string, half_offset bigint"

Rows = list[tuple[Any, ...]]
Found = set[tuple[str, str, int]]


class World:
    """Transactions of all kinds on one broker, and what each place records about them."""

    def __init__(self, seed: int, transactions: int, *, spoiled: int = 0) -> None:
        self.name = f"broker-{seed}"
        self.known_from = self._end = seed * 10
        self.halves: Rows = []
        self.ops: Rows = []
        self.table: Rows = []
        self.visible: Rows = []
        self._random = Random(seed)
        for _ in range(transactions):
            self._live()
        for _ in range(spoiled):
            self._spoil()

    def _live(self) -> None:
        """Make a transaction of one to three requests with a random outcome."""
        name, requests = self.name, [self._hold() for _ in range(self._any(1, 1, 1, 2, 3))]
        head, state = requests[0][0], self._any(0, 1, 1, 1, 2, 3)
        self.halves += [(name, first, head, count, False) for first, count in requests]
        if state in {1, 2}:
            self.ops += [(name, first, count, state) for first, count in requests]
            self.table += [(name, first, count, state) for first, count in requests]
        else:
            self.table.append((name, head, sum(count for _, count in requests), state))
        if state == 1:
            offsets = [first + at for first, count in requests for at in range(count)]
            self.visible += [(name, offset) for offset in offsets]
        if self._any(0, 0, 0, 1):
            self.halves += [(name, first, head, count, True) for first, count in requests]

    def _hold(self) -> tuple[int, int]:
        # A scheduled message also takes a half offset.
        first = self._end + self._any(0, 0, 0, 1)
        count = self._any(1, 1, 1, 2, 7, 20)
        self._end = first + count
        return first, count

    def _any(self, *numbers: int) -> int:
        return self._random.choice(numbers)

    def _spoil(self) -> None:
        """Delete, duplicate or change a row."""
        rows = self._random.choice((self.halves, self.ops, self.table, self.visible))
        at = self._random.randrange(len(rows))
        name, offset, *rest = rows[at]
        match self._any(0, 1, 2):
            case 0:
                del rows[at]
            case 1 if rows is self.ops:
                rows.append((name, offset, rest[0], self._any(1, 2)))
            case 1 if rows is not self.table:
                rows.append(rows[at])
            case 2 if rows in (self.ops, self.table):
                rows[at] = (name, offset, rest[0], self._any(1, 2))
            case _ if all(other[1] != offset + 1 for other in rows):
                rows[at] = (name, offset + 1, *rest)


def frames(
    spark: SparkSession, worlds: list[World]
) -> tuple[DataFrame, DataFrame, DataFrame, DataFrame]:
    """Return the worlds as DataFrames, as Spark would read them."""

    def frame(name: str, kind: str) -> DataFrame:
        return spark.createDataFrame(
            [row for world in worlds for row in getattr(world, name)], kind
        )

    return (
        frame("halves", HALVES),
        frame("ops", OPS),
        frame("table", TRANSACTIONS),
        frame("visible", VISIBLE),
    )


def by_joins(spark: SparkSession, worlds: list[World]) -> Found:
    halves, ops, table, visible = frames(spark, worlds)
    folded = audit.requests(halves, ops).cache()
    known_from = spark.createDataFrame(
        [(world.name, world.known_from) for world in worlds], "broker_name string, known_from int"
    )
    settled = folded.where("NOT (is_copy AND state_code = 0)")
    parts = settled.withColumnRenamed("state_code", "recorded")
    found = (
        audit.findings_in_records(folded, halves, ops)
        .unionByName(audit.findings_in_parts(parts))
        .unionByName(audit.findings_in_table(folded, halves, table))
        .unionByName(audit.findings_in_queues(folded, halves, visible))
    )
    return {key_of(row) for row in within_horizon(found, known_from).collect()}


def by_ranges(spark: SparkSession, worlds: list[World], range_halves: int) -> Found:
    known_from = {world.name: world.known_from for world in worlds}
    folded = fold_ranges(*frames(spark, worlds), known_from, range_halves=range_halves).cache()
    found = folded.where(folded.what == FINDING).collect()
    found += audit.findings_in_parts(folded.where(folded.what == PART_OF)).collect()
    return {key_of(row) for row in found}


def key_of(row: Row) -> tuple[str, str, int]:
    # A request in two ranges is judged piece by piece, but its transaction is judged once.
    is_of_parts = row.name == FindingName.DECIDED_IN_PART
    return row.name, row.broker_name, row.head if is_of_parts else row.half_offset


def test_ranges_and_joins_find_the_same_and_nothing_where_nothing_is_wrong(
    spark: SparkSession,
) -> None:
    sound = [World(seed, transactions=60) for seed in range(4)]
    worlds = sound + [World(seed, transactions=60, spoiled=8) for seed in range(4, 16)]
    found = by_joins(spark, worlds)
    assert not {name for _, name, _ in found} & {world.name for world in sound}
    assert len({name for name, _, _ in found}) > 12
    assert by_ranges(spark, worlds, range_halves=4096) == found
    # Each piece of a cut request is judged, so a name may be found more often.
    in_pieces = by_ranges(spark, worlds, range_halves=16)
    assert {key[:2] for key in in_pieces} == {key[:2] for key in found}


def test_compared_rows_are_counted(spark: SparkSession) -> None:
    world = World(seed=3, transactions=60)
    folded = fold_ranges(*frames(spark, [world]), {}, range_halves=32)
    counts: Counter[str] = Counter()
    for row in folded.where(folded.what == COUNT).collect():
        counts[row.name] += row.other
    assert counts["half_messages"] == sum(row[3] for row in world.halves if not row[4])
    assert counts["visible"] == len(world.visible)
    decided = counts["committed"] + counts["rolled_back"]
    assert counts["transactions"] == decided + counts["undecided"] == 60
