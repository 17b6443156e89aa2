"""Steps that Hypothesis draws: commands on a few transactions, and time that passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import strategies as st

from escrowmq.model.catalog import Group, Topic
from escrowmq.model.resolution import Resolution
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import (
    Append,
    AttemptClaim,
    Carry,
    CheckSent,
    Command,
    DecideBatch,
    End,
    MarkCatalog,
    Park,
    Prepare,
    PutGroup,
    PutTopic,
    Release,
    RemoveTopic,
    Resume,
    Verdict,
    VerdictKind,
    Verdicts,
)
from escrowmq.transaction.expiry_commands import (
    ExpireGroups,
    ExpireOrigins,
    ExpireQueries,
    ExpireTopic,
    NoteUses,
)
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.recall_commands import Recall
from escrowmq.transaction.states import State
from escrowmq.transaction.user_commands import NEW, MarkAccess, PutUser, RemoveUser
from tests.unit.transaction.users import user

POLICY = CheckPolicy(checks_max=2, messages_max=4, transaction_bytes_max=1_024)
HOUR_MS = 3_600_000
#: Taken modulo the number of rows; see ``aimed``.
ROWS = st.integers(min_value=0, max_value=60)
#: Stands for the right value: the next number, the rows of an attempt, the version of a row.
RIGHT = 9
IDS = st.sampled_from(["t", "u", "v", "w", "x", ""])
BY = st.sampled_from(["producer", "settle"])


@dataclass(frozen=True)
class Pass:
    """Advance the clock before the next command."""

    ms: int


def messages(delay: st.SearchStrategy[int], name: str) -> st.SearchStrategy[tuple[Any, ...]]:
    one = st.builds(
        message,
        st.sampled_from([b"a", b"b"]),
        queue_id=st.integers(min_value=0, max_value=1),
        **{name: delay},
    )
    return st.lists(one, min_size=1, max_size=3).map(tuple)


DELAYS_MS = st.sampled_from([0, 0, 0, 5_000])
PREPARES = st.builds(
    Prepare,
    group=st.sampled_from(["pay", "pay", "ship"]),
    transaction_id=IDS,
    messages=messages(DELAYS_MS, "deliver_after_ms"),
    number=st.sampled_from([None, 0, 1, 2, RIGHT, RIGHT, RIGHT]),
    bulk=st.booleans(),
    check_after_ms=st.sampled_from([None, 0]),
    user=st.sampled_from(["", "", "ann"]),
)
USERS = st.sampled_from(["ann", "bob"])
CLAIMS = st.builds(
    AttemptClaim,
    transaction_id=IDS,
    last_number=st.sampled_from([0, 1, RIGHT, RIGHT, RIGHT]),
    rows=st.integers(min_value=1, max_value=2),
)
ENDS = st.builds(
    End,
    half_offset=ROWS,
    resolution=st.sampled_from(Resolution),
    by=BY,
    from_check=st.booleans(),
    remark=st.sampled_from(["", "no table"]),
)
STEPS: st.SearchStrategy[Command | Pass] = st.one_of(
    PREPARES,
    PREPARES,
    st.builds(
        Append,
        # In the past, or within the time that the steps below advance.
        messages=messages(st.sampled_from([0, 0, 1_700_000_005_000]), "deliver_at_ms"),
    ),
    ENDS,
    ENDS,
    st.builds(CheckSent, half_offset=ROWS, client=BY),
    st.builds(Park, half_offset=ROWS, reason=st.just("why")),
    st.builds(Resume, half_offset=ROWS, by=BY),
    st.builds(
        Verdict,
        half_offset=ROWS,
        kind=st.sampled_from(VerdictKind),
        state=st.sampled_from([State.PREPARED, State.PARKED]),
        checks_sent=st.sampled_from([0, 1, RIGHT, RIGHT]),
    ),
    st.lists(
        st.tuples(ROWS, st.booleans(), st.sampled_from([0, RIGHT, RIGHT, RIGHT])), max_size=6
    ).map(
        lambda said: Verdicts(
            half_offsets=[row for row, _, _ in said],
            commits=[is_commit for _, is_commit, _ in said],
            states=[0] * len(said),
            checks_sent=[checks_sent for _, _, checks_sent in said],
        )
    ),
    st.builds(
        DecideBatch,
        app_id=st.just("app"),
        query_id=st.sampled_from(["q", "r"]),
        batch_id=st.sampled_from([0, 1, 2, 3, "named"]),
        attempts=st.lists(CLAIMS, max_size=2).map(tuple),
        by=BY,
    ),
    st.builds(Release, half_offsets=st.lists(ROWS, max_size=2).map(tuple)),
    st.builds(Recall, half_offset=ROWS, log_offset=st.just(0), epoch=st.just(""), by=BY),
    st.builds(Carry, first=ROWS),
    # The topic of all messages is deleted and made again, at first in a log that keeps no topics.
    st.builds(RemoveTopic, name=st.just("orders"), by=BY, is_forced=st.booleans()),
    st.builds(PutTopic, topic=st.just(Topic(name="orders")), is_only_made=st.booleans()),
    st.builds(PutGroup, group=st.just(Group(name="readers")), is_only_made=st.booleans()),
    st.builds(MarkCatalog, mark=st.sampled_from(["kept", "offsets_lost"])),
    st.sampled_from(
        [
            ExpireOrigins(numbers=(0, 1, 2)),
            ExpireQueries(queries=(("app", "q"), ("app", "r"))),
            NoteUses(groups=("readers",), topics=("orders",)),
            ExpireGroups(names=("readers",)),
            ExpireTopic(name="orders", queue_ends={}),
        ]
    ),
    st.builds(
        PutUser,
        user=st.builds(
            user,
            USERS,
            access_key=st.sampled_from(["ann", "bob", "AK"]),
            certificate_names=st.sampled_from([(), ("CN=a",), ("CN=a", "CN=b")]),
            is_enabled=st.booleans(),
        ),
        seen=st.sampled_from([NEW, 0, RIGHT, RIGHT, RIGHT]),
        by=BY,
    ),
    st.builds(RemoveUser, name=USERS, by=BY),
    st.just(MarkAccess()),
    st.builds(Pass, st.sampled_from([1, 5_000, HOUR_MS, 32 * 24 * HOUR_MS])),
)


def aimed(engine: MemoryEngine, command: Command) -> Command:  # noqa: C901 - one case per command
    """Aim the command at existing rows, because few blindly drawn commands would do anything."""
    # One more than the rows, so that some commands still miss.
    rows = engine.table.end + 1
    right: dict[str, Any] = {}
    match command:
        case Prepare(number=9):
            found = engine.table.find(command.transaction_id)
            right["number"] = 0 if found is None else len(ranges_at(engine, found))
        case ExpireTopic():
            numbers = engine.core.names.queues_of.get(command.name, {}).values()
            right["queue_ends"] = {number: engine.core.queue_ends[number] for number in numbers}
        case Verdict(checks_sent=9):
            right["half_offset"] = row = command.half_offset % rows
            half = engine.core.half(row)
            if half is not None:
                head = engine.core.head_row(half)
                right |= {"state": head.state, "checks_sent": head.checks_sent}
        case Verdicts():
            right |= right_columns(engine, command, rows)
        case End() | CheckSent() | Park() | Resume() | Verdict():
            right["half_offset"] = command.half_offset % rows
        case Release():
            # Without rows the command releases all that are due.
            named = tuple(row % rows for row in command.half_offsets)
            right["half_offsets"] = named or tuple(engine.due(engine.clock.now_ms(), rows))
        case Recall():
            right |= right_place(engine, command.half_offset % rows)
        case Carry():
            right["first"] = command.first % rows
        case PutUser(seen=9):
            known = engine.core.catalog.users.get(command.user.name)
            right["seen"] = NEW if known is None else known.version
        case DecideBatch():
            right["attempts"] = tuple(right_claim(engine, claim) for claim in command.attempts)
    return msgspec.structs.replace(command, **right)


def right_place(engine: MemoryEngine, row: int) -> dict[str, Any]:
    half = engine.table.get(row)
    return {"half_offset": row, "log_offset": 0 if half is None else half.log_offset}


def right_columns(engine: MemoryEngine, command: Verdicts, rows: int) -> dict[str, Any]:
    named = [row % rows for row in command.half_offsets]
    states, checks_sent = list(command.states), list(command.checks_sent)
    for at, row in enumerate(named):
        half = engine.core.half(row)
        if checks_sent[at] == RIGHT and half is not None:
            states[at], checks_sent[at] = half.state, half.checks_sent
    return {"half_offsets": named, "states": states, "checks_sent": checks_sent}


def ranges_at(engine: MemoryEngine, row: int) -> list[tuple[int, int]]:
    core = engine.core
    return core.ranges_of(core.head_row(core.row(row)).half_offset)


def right_claim(engine: MemoryEngine, claim: AttemptClaim) -> AttemptClaim:
    found = engine.table.find(claim.transaction_id)
    if claim.last_number != RIGHT or found is None:
        return claim
    ranges = ranges_at(engine, found)
    return AttemptClaim(
        transaction_id=claim.transaction_id,
        last_number=len(ranges) - 1,
        rows=sum(count for _, count in ranges),
    )


LISTS = st.lists(STEPS, min_size=20, max_size=50)
