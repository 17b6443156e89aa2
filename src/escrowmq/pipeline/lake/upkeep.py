"""Upkeep of the lake: compacts small files, deletes old rows, and removes unneeded files.

Each step is one commit or nothing, so it can be killed at any point and run again. No step
conflicts with the archive, whose commits come before or after it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake.exceptions import CommitFailedError

from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.lake.delta import Lake, told
from escrowmq.pipeline.lake.marks import mark_kept_from
from escrowmq.pipeline.lake.tables import DATE, TABLES, LakeTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = event_log(__name__)

SMALL_FILES_MIN = 8
"""A partition with fewer small files is left alone."""

TARGET_BYTES = 128 * 1024 * 1024
PARTITIONS_PER_RUN_MAX = 100
"""The remaining partitions are left to the next run."""

KEPT_HOURS = 24
KEPT_HOURS_MIN = 1
"""Younger files may belong to a batch that is being written, or to a running query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What upkeep did to one table."""

    table: str
    #: Files that were merged, and the files that replaced them.
    files_merged: int = 0
    files_made: int = 0
    #: Files whose rows were deleted.
    files_deleted: int = 0
    #: Files that were removed from the storage.
    files_removed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepSummary:
    """What upkeep did to all tables: counts of files, as in ``Upkeep``."""

    files_merged: int
    files_made: int
    files_deleted: int
    files_removed: int
    took_ms: int


def keep_up(lake: Lake, *, today: date, retention_days: int = 0) -> UpkeepSummary:
    """Do all upkeep of all tables. With `retention_days` 0, rows stay forever.

    Raises:
        Unavailable: ``lake_unreachable``, for one table. The other tables are still processed.
    """
    began = time.monotonic()
    done: list[Upkeep] = []
    failures: list[EscrowError] = []
    for table in TABLES.values():
        try:
            done.append(_keep_up(lake, table, today, retention_days))
        except EscrowError as error:
            failures.append(error)
            continue
        if done[-1] != Upkeep(table=table.name):
            log.info("table_kept_up", extra=asdict(done[-1]))
    if failures:
        raise failures[0]
    return UpkeepSummary(
        files_merged=sum(one.files_merged for one in done),
        files_made=sum(one.files_made for one in done),
        files_deleted=sum(one.files_deleted for one in done),
        files_removed=sum(one.files_removed for one in done),
        took_ms=int((time.monotonic() - began) * 1_000),
    )


def _keep_up(lake: Lake, table: LakeTable, today: date, retention_days: int) -> Upkeep:
    # Delete first, so that no file is merged that will be deleted anyway.
    deleted = delete_old(lake, table, today, retention_days) if retention_days else 0
    merged = compact(lake, table)
    return replace(merged, files_deleted=deleted, files_removed=remove_files(lake, table))


def compact(
    lake: Lake, table: LakeTable, *, partitions_max: int = PARTITIONS_PER_RUN_MAX
) -> Upkeep:
    """Merge the small files of the partitions that have the most of them."""
    delta = lake.find(table)
    merged = made = 0
    for _, partition in _crowded(delta, table)[:partitions_max] if delta else ():
        assert delta is not None
        with told(table):
            try:
                metrics = delta.optimize.compact(
                    partition_filters=[(name, "=", value) for name, value in partition],
                    target_size=TARGET_BYTES,
                    max_concurrent_tasks=1,
                )
            except CommitFailedError as error:
                _put_off(table, "compact", error)
                break
        merged += metrics["numFilesRemoved"]
        made += metrics["numFilesAdded"]
    return Upkeep(table=table.name, files_merged=merged, files_made=made)


def to_compact(
    lake: Lake, table: LakeTable, *, partitions_max: int = PARTITIONS_PER_RUN_MAX
) -> Upkeep:
    """Count the files that would be merged. The number of resulting files is unknown."""
    delta = lake.find(table)
    crowded = _crowded(delta, table)[:partitions_max] if delta else []
    return Upkeep(table=table.name, files_merged=sum(count for count, _ in crowded))


def delete_old(
    lake: Lake, table: LakeTable, today: date, kept_days: int, *, is_dry: bool = False
) -> int:
    """Delete the rows of days before the last `kept_days`, and return the number of files.

    The files stay in the storage until ``remove_files`` runs. A dry run only counts them.
    """
    delta = lake.find(table)
    if delta is None:
        return 0
    first_day = today - timedelta(days=kept_days)
    days = pa.table(delta.get_add_actions(flatten=True))[f"partition.{DATE}"]
    old = int(pc.sum(pc.less(days.cast(pa.date32()), first_day)).as_py() or 0)
    if is_dry or not old:
        return old
    # Mark first, so that an audit never reports rows missing that retention deleted.
    mark_kept_from(lake, table, first_day)
    with told(table):
        try:
            # The condition matches whole partitions, so nothing is rewritten.
            metrics = lake.open(table).delete(f"{DATE} < '{first_day.isoformat()}'")
        except CommitFailedError as error:
            _put_off(table, "delete", error)
            return 0
    return int(metrics["num_removed_files"])


def remove_files(
    lake: Lake, table: LakeTable, *, kept_hours: int = KEPT_HOURS, is_dry: bool = False
) -> int:
    """Remove files that belong to no table: replaced, deleted, or from a failed attempt.

    Younger files stay. A batch that is being written has files that no table has yet, and a running
    query may read files that no table has any more. A dry run only counts them.
    """
    if kept_hours < KEPT_HOURS_MIN:
        raise RequestRefused(
            "bad_option",
            f"must be a whole number, {KEPT_HOURS_MIN} or more",
            option="keep-hours",
            value=str(kept_hours),
        )
    delta = lake.find(table)
    if delta is None:
        return 0
    with told(table):
        removed = delta.vacuum(
            retention_hours=kept_hours, dry_run=is_dry, enforce_retention_duration=False, full=True
        )
    return len(removed)


def _crowded(delta: DeltaTable, table: LakeTable) -> list[tuple[int, list[tuple[str, str]]]]:
    """Partitions with many small files and the number of these, highest first."""
    actions = pa.table(delta.get_add_actions(flatten=True))
    small = actions.filter(pc.less(actions["size_bytes"], TARGET_BYTES // 2))
    places = [f"partition.{name}" for name in table.partitioned_by]
    counted = small.group_by(places).aggregate([("path", "count")])
    crowded = counted.filter(pc.greater_equal(counted["path_count"], SMALL_FILES_MIN))
    rows = crowded.sort_by([("path_count", "descending")]).to_pylist()
    names = table.partitioned_by
    return [
        (row["path_count"], [(name, str(row[f"partition.{name}"])) for name in names])
        for row in rows
    ]


def _put_off(table: LakeTable, what: str, error: Exception) -> None:
    """Log that another commit conflicted. The next run tries again."""
    log.info("upkeep_put_off", extra={"table": table.name, "what": what, "cause": str(error)[:200]})
