"""Frames between a broker and its look-up process: whole messages, or a violation."""

from __future__ import annotations

import msgspec
import pytest

from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.lineage import Epoch, Lineage, Sight
from escrowmq.protocol.look_up.frames import (
    CALL_BYTES_MAX,
    REPLY_BYTES_MAX,
    TEXT_CHARS_MAX,
    call_splitter,
    encode_call,
    encode_reply,
    reply_splitter,
)
from escrowmq.protocol.look_up.messages import (
    LEDGERS_MAX,
    ROWS_MAX,
    Configure,
    Configured,
    Known,
    LookUpAnswer,
    LookUpCall,
    LookUpReply,
    LookUpRequest,
    Probe,
    ProbedLedger,
)
from escrowmq.protocol.native.ledgers import LedgerReportRow

SIGHT = Sight(Lineage("store", (Epoch("root", 0, 0), Epoch("one", 64, 2, 5))), 4_096, 7)


def request(rows: int = 2, **changed: object) -> LookUpRequest:
    made = LookUpRequest(
        number=3,
        ledger_uuid="uuid",
        sight=SIGHT,
        as_of_ms=1_700_000_000_000,
        half_offsets=list(range(rows)),
        transaction_ids=[f"transaction-{number}" for number in range(rows)],
        producer_groups=["orders"] * rows,
        stored_at_ms=[1_600_000_000_000] * rows,
        allowed_ms=[60_000] * rows,
    )
    return msgspec.structs.replace(made, **changed)


CALLS: list[LookUpCall] = [
    Configure(ledgers={"shop": "postgresql://shop:open-sesame@host/orders", "ö": "sqlite:///x"}),
    Probe(number=1),
    request(),
    request(0, sight=None),
    request(ROWS_MAX),
]
REPORT = LedgerReportRow(
    name="shop", uuid="u", is_reachable=True, succeeded_ago_ms=5, failed_ago_ms=None
)
REPLIES: list[LookUpReply] = [
    Configured(),
    Known(number=1, ledgers=(ProbedLedger(report=REPORT, fault="standby", cause="a standby"),)),
    LookUpAnswer(
        number=3, outcomes=list(LedgerOutcome), reasons=["", "", "absent"], error="", error_text=""
    ),
]


def test_messages_come_back_as_they_were_sent() -> None:
    calls, replies = call_splitter(), reply_splitter()
    assert list(calls.feed(b"".join(map(encode_call, CALLS)))) == CALLS
    assert list(replies.feed(b"".join(map(encode_reply, REPLIES)))) == REPLIES


@pytest.mark.parametrize("chunk_bytes", [1, 3, 4, 5, 4_096])
def test_messages_come_back_however_they_are_cut(chunk_bytes: int) -> None:
    splitter, sent = call_splitter(), b"".join(map(encode_call, CALLS[:4]))
    chunks = [sent[at : at + chunk_bytes] for at in range(0, len(sent), chunk_bytes)]
    assert [call for chunk in chunks for call in splitter.feed(chunk)] == CALLS[:4]


def test_a_configuration_never_shows_its_urls() -> None:
    assert repr(CALLS[0]) == "Configure(version=1, ledgers=['shop', 'ö'])"
    assert "sesame" not in f"{CALLS[0]} {CALLS[0]!r}"


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


@pytest.mark.parametrize(
    "garbage",
    [
        framed(b""),
        framed(b"\xc1"),
        framed(b"not a message"),
        framed(msgspec.msgpack.encode({"type": "probe"})),
        framed(msgspec.msgpack.encode({"type": "other", "number": 1})),
        framed(msgspec.msgpack.encode({"type": "probe", "number": 1}) + b"\0"),
        # Text that is not UTF-8.
        framed(b"\x82\xa4type\xa9configure\xa7ledgers\x81\xa1\xff\xa1a"),
        framed(encode_call(request())[4:].replace(b"transaction-1", b"transaction-\xff")),
        # The columns must have equal lengths, and at most ROWS_MAX rows.
        framed(msgspec.msgpack.encode({**msgspec.to_builtins(request()), "allowed_ms": [1]})),
        (CALL_BYTES_MAX + 1).to_bytes(4, "big"),
        b"HTTP/1.1 400 Bad Request",
    ],
)
def test_garbage_is_a_violation(garbage: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="look_up_malformed"):
        list(call_splitter().feed(garbage))


def test_a_violation_comes_after_the_messages_before_it_and_repeats_no_url() -> None:
    bad = msgspec.msgpack.encode({"type": "configure", "ledgers": {"x": "open-sesame", "y": 5}})
    found = call_splitter().feed(encode_call(Probe(number=1)) + framed(bad))
    assert next(found) == Probe(number=1)
    with pytest.raises(ProtocolViolation) as caught:
        next(found)
    assert "sesame" not in str(caught.value)


def test_the_text_of_a_violation_is_short() -> None:
    bad = framed(msgspec.msgpack.encode({"type": "x" * 100_000}))
    with pytest.raises(ProtocolViolation) as caught:
        list(reply_splitter().feed(bad))
    assert len(caught.value.message) <= TEXT_CHARS_MAX


def test_too_many_ledgers_are_a_violation() -> None:
    many = Configure(ledgers={str(number): "" for number in range(LEDGERS_MAX + 1)})
    with pytest.raises(ProtocolViolation):
        list(call_splitter().feed(encode_call(many)))


def test_a_request_has_columns_of_one_length_and_a_limit() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        request(2, half_offsets=[1])
    with pytest.raises(ValueError, match="at most 4000 rows"):
        request(ROWS_MAX + 1)


def test_a_message_beyond_its_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(RequestRefused, match="look_up_too_large"):
        encode_call(request(1, transaction_ids=["x" * CALL_BYTES_MAX]))
    with pytest.raises(RequestRefused, match="look_up_too_large"):
        encode_reply(LookUpAnswer(number=1, outcomes=[], reasons=[], error="x" * REPLY_BYTES_MAX))


def test_the_longest_request_of_legal_names_fits() -> None:
    """Names have at most 255 characters, of up to four bytes each."""
    name = "\N{PILE OF POO}" * 255
    full = request(ROWS_MAX, transaction_ids=[name] * ROWS_MAX, producer_groups=[name] * ROWS_MAX)
    assert len(encode_call(full)) < CALL_BYTES_MAX
