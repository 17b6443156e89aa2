"""Decides which checkpoint may append to a lake table, and which of its batches are in the table.

The law: **only the table's owner appends, and batch n + 1 comes after batch n.** Owner, batch and
the batch's plan are app transactions of the Delta table. They change with the rows, in one commit,
or not at all. So a batch that Spark repeats is skipped, no matter which process was killed in
between. A checkpoint or a table that was deleted, copied or restored from a backup can neither
duplicate rows nor leave some out.

An owner is a number in a note beside Spark's files in the checkpoint. A checkpoint without a note
is new: it continues from what the table has, and becomes the owner. From then on the previous owner
is refused.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from deltalake import DeltaTable, Transaction

from escrowmq.model.errors import RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.lake.delta import Entitlement, Lake
from escrowmq.pipeline.lake.storage import files_below, read_whole, write_whole
from escrowmq.pipeline.lake.tables import LakeTable

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem  # type: ignore[import-untyped]  # it brings no types

log = event_log(__name__)

OWNER = "escrowmq/archive/owner"
BATCH = "escrowmq/archive/batch"
PLAN = "escrowmq/archive/plan"
ENDED = "escrowmq/archive/ended"
"""Prefix for the last batch that a former owner committed, by owner id."""
NOTE = "escrowmq.json"

NO_BATCH = -1
"""The batch number before an owner's first batch."""

#: Spark's files in a checkpoint: its identity, and what each batch reads.
_SPARKS_FILE = "metadata"
_PLANS = "offsets"
_REMEDY = "delete this checkpoint; a new one continues from what the lake has"


class TableOwner(NamedTuple):
    """What a table records about its owner."""

    owner: int
    #: The last batch in the table, and the fingerprint of its plan.
    batch: int
    plan: int

    def transactions(self) -> list[Transaction]:
        """The transactions that a commit writes."""
        return [
            Transaction(name, version)
            for name, version in zip((OWNER, BATCH, PLAN), self, strict=True)
        ]


class Note(msgspec.Struct, frozen=True):
    """What a checkpoint records about itself before its first batch."""

    archive_id: int
    #: Where its stream began: the option ``startingOffsets``.
    starting: str
    #: What the table recorded then; None if it had no owner.
    after: TableOwner | None


class TableClaim:
    """A checkpoint's right to append to a table. Used on the driver."""

    def __init__(self, table: LakeTable, files: FileSystem, note: Note) -> None:
        self.table = table
        self.archive_id = note.archive_id
        #: Where the stream began: the option ``startingOffsets``.
        self.starting = note.starting
        #: What the table recorded about the previous owner; None if there was none.
        self.after = note.after
        self._files = files

    def entitled(self, batch: int) -> Entitlement:
        """The entitlement to commit this batch.

        Raises, when it is called:
            RequestRefused: ``archive_superseded``, ``lake_behind_checkpoint``,
                ``checkpoint_behind_lake``.
        """
        place = TableOwner(self.archive_id, batch, _fingerprint(self._plan(batch)))

        def ask(delta: DeltaTable) -> Sequence[Transaction] | None:
            there = self.place(delta)
            if place == there:
                return None
            if place.batch != there.batch + 1:
                raise self._apart(place, there)
            return place.transactions()

        return ask

    def planned(self, batch: int) -> dict[str, Any]:
        """The planned end offsets of a batch, in the format of the source's reader."""
        return dict(msgspec.json.decode(self._plan(batch).splitlines()[-1]))

    def place(self, delta: DeltaTable) -> TableOwner:
        """What the table records, as long as this checkpoint owns it."""
        there = place_of(delta)
        if there is None or there.owner != self.archive_id:
            raise _superseded(self.table)
        return there

    def _plan(self, batch: int) -> bytes:
        """Spark's plan of a batch, written before it began.

        The last line holds the source's offsets.
        """
        plan = read_whole(self._files, f"{_PLANS}/{batch}")
        if plan is None:
            raise self._behind(batch)
        return plan

    def _apart(self, place: TableOwner, there: TableOwner) -> RequestRefused:
        if place.batch < there.batch + 1:
            return self._behind(there.batch)
        return RequestRefused(
            "lake_behind_checkpoint",
            f"the table was restored to an older version, or lost its last files; {_REMEDY}",
            table=self.table.name,
            batch=place.batch,
            batch_in_table=there.batch,
        )

    def _behind(self, batch: int) -> RequestRefused:
        return RequestRefused(
            "checkpoint_behind_lake",
            f"the checkpoint is an older copy and lacks a batch that the table has; {_REMEDY}",
            table=self.table.name,
            batch_in_table=batch,
        )


def place_of(delta: DeltaTable) -> TableOwner | None:
    """What the table records about its owner; None if it never had one."""
    owner, batch, plan = (delta.transaction_version(name) for name in (OWNER, BATCH, PLAN))
    return (
        None if owner is None or batch is None or plan is None else TableOwner(owner, batch, plan)
    )


def last_batch(delta: DeltaTable, archive_id: int) -> int | None:
    """The last batch that an owner committed; None if it was not recorded."""
    place = place_of(delta)
    if place is not None and place.owner == archive_id:
        return place.batch
    return delta.transaction_version(f"{ENDED}/{archive_id}")


def _fingerprint(planned: bytes) -> int:
    """A hash of 63 bits, the size of a Delta transaction version."""
    return int.from_bytes(hashlib.sha256(planned).digest()[:8]) >> 1


def claim(
    lake: Lake,
    table: LakeTable,
    checkpoint: str,
    storage: Mapping[str, str],
    take_over: Callable[[TableOwner], str],
) -> TableClaim:
    """Make this checkpoint the owner of the table. Runs on the driver, before the stream starts.

    `take_over` is called if there was another owner. It returns where the stream begins. It must
    change nothing, because the other owner may be alive and commit before this claim does.

    Raises:
        RequestRefused: ``archive_superseded``, ``checkpoint_not_ours``.
    """
    files = files_below(checkpoint, storage)
    place = place_of(lake.open(table))
    found = read_whole(files, NOTE)
    if found is not None:
        note = msgspec.json.decode(found, type=Note)
    elif read_whole(files, _SPARKS_FILE) is not None:
        raise RequestRefused("checkpoint_not_ours", _REMEDY, checkpoint=checkpoint)
    else:
        # The note comes first. If the process were killed after the commit without a note, the
        # checkpoint would not know that it is the owner.
        starting = "earliest" if place is None else take_over(place)
        note = Note(secrets.randbits(63), starting, place)
        write_whole(files, NOTE, msgspec.json.encode(note))
        if place is not None:
            log.warning(
                "archive_taken_over",
                extra={"table": table.name, "checkpoint": checkpoint, "batch": place.batch},
            )
    lake.commit(table, (), _becoming_owner(table, note))
    return TableClaim(table, files, note)


def _becoming_owner(table: LakeTable, note: Note) -> Entitlement:
    def ask(delta: DeltaTable) -> Sequence[Transaction] | None:
        place = place_of(delta)
        if place is not None and place.owner == note.archive_id:
            return None
        if place != note.after:
            raise _superseded(table)
        ended = [] if place is None else [Transaction(f"{ENDED}/{place.owner}", place.batch)]
        return [*TableOwner(note.archive_id, NO_BATCH, 0).transactions(), *ended]

    return ask


def _superseded(table: LakeTable) -> RequestRefused:
    return RequestRefused(
        "archive_superseded",
        f"another checkpoint has archived into this lake since; {_REMEDY}",
        table=table.name,
    )
