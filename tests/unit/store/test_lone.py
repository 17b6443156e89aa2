"""The fixed layout of the two most common frames: the same records in other bytes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import StoreUnusable
from escrowmq.store.log.frames import decode_records, encode_records
from escrowmq.store.log.lone_frames import DECISION_BYTES, HALF_BYTES, MARK
from escrowmq.transaction.records import (
    NEVER,
    UNNUMBERED,
    Asked,
    Decided,
    Placed,
    Prepared,
    Record,
    Span,
)
from escrowmq.transaction.states import State

HALF = Prepared(
    first=7,
    head=7,
    origin=2,
    transaction_id="t-7 ü",
    number=UNNUMBERED,
    next_check_at_ms=1_700_000_006_000,
    deliver_after_ms=[],
    placed=Placed(
        queues=[3],
        sizes=[300],
        crcs=[2**32 - 1],
        tags=[-(2**31)],
        unique=[1],
        keys=[5, 6],
        keyed=[0, 0],
    ),
)
COMMIT = Decided(7, State.COMMITTED, "producer ü", [(7, 1)], [Span(3, 12, 1)], [])
ROLLBACK = Decided(7, State.ROLLED_BACK, "", [(7, 1)], [], [])


@pytest.mark.parametrize("record", [HALF, COMMIT, ROLLBACK])
def test_a_transaction_of_one_message_has_a_fixed_layout(record: Record) -> None:
    encoded = encode_records((record,))
    assert encoded[0] == MARK
    assert decode_records(encoded, 0) == [record]
    assert decode_records(memoryview(encoded), 0) == [record]


@dataclass
class Other:
    """Records that do not fit the layout."""

    what: str
    records: tuple[Record, ...]


OTHERS = [
    Other("two records", (HALF, COMMIT)),
    Other("another kind", (Asked(7, 1, 2, "client"),)),
    Other("a later request", (msgspec.structs.replace(HALF, head=3),)),
    Other("a delay", (msgspec.structs.replace(HALF, deliver_after_ms=[5]),)),
    Other(
        "two messages",
        (msgspec.structs.replace(HALF, placed=Placed([3, 3], [1, 1], [0, 0], [0, 0], [0, 0])),),
    ),
    Other("a decision by force", (msgspec.structs.replace(COMMIT, is_forced=True),)),
    Other("two rows", (msgspec.structs.replace(COMMIT, ranges=[(7, 2)]),)),
    Other("two requests", (msgspec.structs.replace(COMMIT, ranges=[(7, 1), (9, 1)]),)),
    Other("one that waits", (msgspec.structs.replace(COMMIT, given=[], waiting=[(7, 9)]),)),
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.what)
def test_anything_else_is_said_in_messagepack(other: Other) -> None:
    encoded = encode_records(other.records)
    assert encoded[0] != MARK
    assert decode_records(encoded, 0) == list(other.records)


words = st.integers(0, 2**32 - 1)
longs = st.integers(-(2**63), NEVER)


@given(words, longs, longs, st.lists(words, max_size=9), st.text(max_size=40))
def test_every_number_comes_back(
    word: int, row: int, number: int, keys: list[int], transaction_id: str
) -> None:
    record = msgspec.structs.replace(
        HALF,
        first=row,
        head=row,
        origin=word,
        number=number,
        next_check_at_ms=row,
        transaction_id=transaction_id.encode(errors="ignore").decode(),
        placed=Placed([word], [word], [word], [0], [word], keys, [0] * len(keys)),
    )
    assert decode_records(encode_records((record,)), 0) == [record]


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        bytes([MARK]),
        bytes([MARK, 3]) + bytes(100),
        encode_records((COMMIT,))[: DECISION_BYTES - 1],
        encode_records((HALF,))[: HALF_BYTES - 1],
        encode_records((HALF,))[: HALF_BYTES + 7],
        encode_records((ROLLBACK,)) + b"\xff",
    ],
)
def test_unknown_records_are_refused_as_those_of_a_newer_version(tail: bytes) -> None:
    with pytest.raises(StoreUnusable, match="records_unknown"):
        decode_records(tail, 5)
