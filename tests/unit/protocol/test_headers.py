"""Typed headers: read from JSON and binary pairs of all kinds of clients, and written."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.remoting.admin_headers import (
    ATTRIBUTES_MAX,
    CreateTopicHeader,
    parse_attributes,
)
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.consumer_headers import (
    HeartbeatResponseHeader,
    PullHeader,
    QueueHeader,
    SearchOffsetHeader,
)
from escrowmq.protocol.remoting.headers import (
    ExtFields,
    Header,
    read_fields,
    read_header,
    write_fields,
)
from escrowmq.protocol.remoting.send_headers import (
    EndTransactionHeader,
    SendHeader,
    SendResponseHeader,
    read_send_header,
)
from tests.unit.protocol.frames import FIELDS
from tests.unit.protocol.request_headers import REQUEST_HEADERS

KINDS = sorted(set(REQUEST_HEADERS.values()), key=lambda kind: kind.__name__)
LONG_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "batch": "m",
    "bname": "n",
}
LONG_FIELDS = {name: FIELDS[letter] for name, letter in LONG_NAMES.items()}
END = {
    "producerGroup": "pay-group",
    "tranStateTableOffset": "12",
    "commitLogOffset": "4096",
    "commitOrRollback": "8",
    "msgId": "U1",
}
SENT = SendHeader(
    producer_group="pay-group",
    topic="orders",
    default_topic="TBW102",
    default_queue_count=4,
    queue_id=3,
    sys_flag=4,
    born_at_ms=1_700_000_000_123,
    flag=0,
    properties="UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02",
    broker_name="broker-a",
)


def raw(fields: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(fields).encode())


def both(fields: dict[str, str]) -> list[ExtFields]:
    return [raw(fields), fields]


@pytest.mark.parametrize("ext", both(FIELDS), ids=["json", "binary"])
def test_a_message_is_sent_with_letters(ext: ExtFields) -> None:
    assert read_send_header(RequestCode.SEND_MESSAGE_V2, ext) == SENT
    assert read_send_header(RequestCode.SEND_BATCH_MESSAGE, ext) == SENT


@pytest.mark.parametrize("ext", both({**FIELDS, "l": "5"}), ids=["json", "binary"])
def test_the_letter_l_is_the_limit_of_retries(ext: ExtFields) -> None:
    sent = read_send_header(RequestCode.SEND_MESSAGE_V2, ext)
    assert (sent.max_reconsume_times, sent.reconsume_times) == (5, SENT.reconsume_times)


@pytest.mark.parametrize("ext", both(LONG_FIELDS), ids=["json", "binary"])
def test_a_message_is_sent_with_long_names(ext: ExtFields) -> None:
    assert read_send_header(RequestCode.SEND_MESSAGE, ext) == SENT
    assert read_send_header(RequestCode.SEND_BATCH_MESSAGE, ext) == SENT


@pytest.mark.parametrize(
    ("code", "fields", "missing"),
    [
        (RequestCode.SEND_MESSAGE, FIELDS, "producerGroup"),
        (RequestCode.SEND_MESSAGE_V2, LONG_FIELDS, "a"),
        (RequestCode.SEND_BATCH_MESSAGE, {"a": "pay-group"}, "b"),
    ],
)
def test_a_message_without_its_fields_is_refused(
    code: RequestCode, fields: dict[str, str], missing: str
) -> None:
    for ext in both(fields):
        with pytest.raises(ProtocolViolation) as refused:
            read_send_header(code, ext)
        assert refused.value.code == "header_malformed"
        assert refused.value.fields["field"] == missing


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"queueOffset": "12x"}, "queueOffset"),
        ({"queueOffset": ""}, "queueOffset"),
        ({"queueOffset": "9223372036854775808"}, "queueOffset"),
        ({"queueId": "2147483648"}, "queueId"),
        ({"queueId": "-2147483649"}, "queueId"),
        ({"queueId": "9" * 5_000}, "queueId"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_name(change: dict[str, str], field: str) -> None:
    for ext in both(PULL | change):
        with pytest.raises(ProtocolViolation) as refused:
            read_header(PullHeader, ext)
        assert refused.value.code == "header_malformed"
        assert refused.value.fields == {"header": "PullHeader", "field": field}


PULL = {
    "consumerGroup": "ship-group",
    "topic": "orders",
    "queueId": "3",
    "queueOffset": "12",
    "maxMsgNums": "32",
    "sysFlag": "0",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subVersion": "1700000000000",
}


@pytest.mark.parametrize("missing", PULL)
def test_a_field_that_must_be_there_is_missed_by_name(missing: str) -> None:
    for ext in both({name: value for name, value in PULL.items() if name != missing}):
        with pytest.raises(ProtocolViolation) as refused:
            read_header(PullHeader, ext)
        assert refused.value.fields == {"header": "PullHeader", "field": missing}


@pytest.mark.parametrize(
    "ext",
    [
        b"[]",
        b"5",
        b'"topic"',
        b'{"topic":["orders"],"queueId":"3"}',
        b'{"topic":{"a":{}},"queueId":"3"}',
        b'{"topic":"\xff","queueId":"3"}',
        b'{"topic":"orders","queueId":"3"',
        b'{"topic":"orders","queueId":"3"}}',
        b'{"topic":"orders","queueId":"3","x":' + b"[" * 100_000,
        b"",
    ],
)
def test_fields_that_are_no_map_of_texts_are_refused(ext: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="header_malformed"):
        read_header(QueueHeader, msgspec.Raw(ext))


def test_no_fields_at_all_miss_the_first() -> None:
    nothing: list[ExtFields] = [raw(None), raw({}), {}]
    for ext in nothing:
        with pytest.raises(ProtocolViolation, match="topic"):
            read_header(QueueHeader, ext)
        assert read_header(HeartbeatResponseHeader, ext) == HeartbeatResponseHeader()


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "7", "queueId": "3", "committed": "true"},
        {"topic": "7", "queueId": 3, "committed": True},
        {"topic": 7, "queueId": 3.0, "committed": "TRUE"},  # A number where text belongs.
        {"topic": "7", "queueId": "3", "committed": None},
        {"topic": "7", "queueId": "3", "bname": "broker-a", "nsd": None, "lo": False},
    ],
)
def test_clients_may_write_numbers_and_nulls_as_they_like(fields: dict[str, object]) -> None:
    assert read_header(QueueHeader, raw(fields)) == QueueHeader(topic="7", queue_id=3)


def test_all_fields_can_be_had_as_text() -> None:
    fields = {"a": "1", "b": 2, "c": True, "d": False, "e": None, "f": 1.5}
    as_text = {"a": "1", "b": "2", "c": "true", "d": "false", "f": "1.5"}
    assert read_fields(raw(fields)) == as_text
    assert read_fields(as_text) == as_text


def test_a_producers_answer_is_read() -> None:
    header = read_header(EndTransactionHeader, raw(END | {"fromTransactionCheck": "true"}))
    assert header == EndTransactionHeader(
        producer_group="pay-group",
        half_offset=12,
        log_offset=4_096,
        resolution_bits=8,
        is_check_answer=True,
        unique_key="U1",
    )


def test_values_are_written_as_text_and_none_is_left_out() -> None:
    header = SendResponseHeader(
        offset_message_id="0A", queue_id=3, queue_offset=2**40, is_traced=False
    )
    assert write_fields(header) == {
        "msgId": "0A",
        "queueId": "3",
        "queueOffset": "1099511627776",
        "TRACE_ON": "false",
    }


@pytest.mark.parametrize(
    ("sys_flag", "says"),
    [
        (0, (False, False, False)),
        (1, (True, False, False)),
        (2, (False, True, False)),
        (4, (False, False, True)),
        (8, (False, False, False)),
        (31, (True, True, True)),
    ],
)
def test_a_pulls_flag_says_what_it_wants(sys_flag: int, says: tuple[bool, ...]) -> None:
    pull = read_header(PullHeader, PULL | {"sysFlag": str(sys_flag)})
    assert (pull.commits_offset, pull.may_wait, pull.has_subscription) == says


@pytest.mark.parametrize(
    ("boundary", "is_upper"),
    [({}, False), ({"boundaryType": "LOWER"}, False), ({"boundaryType": "UPPER"}, True)],
)
def test_a_search_looks_for_the_first_unless_told(boundary: dict[str, str], is_upper: bool) -> None:  # noqa: FBT001
    fields = {"topic": "orders", "queueId": "3", "timestamp": "5"} | boundary
    assert read_header(SearchOffsetHeader, fields).is_upper is is_upper


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", {}),
        ("+message.type=TRANSACTION", {"message.type": "TRANSACTION"}),
        ("+a=1,+b=x=y,-c", {"a": "1", "b": "x=y", "c": None}),
        (" +a=1 , -b ", {"a": "1", "b": None}),
    ],
)
def test_attributes_are_set_and_taken_away(text: str, changes: dict[str, str | None]) -> None:
    assert parse_attributes(text) == changes


@pytest.mark.parametrize(
    "text", [",", "a=1", "+a", "+a=", "-a=1", "+=1", "-", "+", "+a=1,", "+a=1,+a=2", "+a=1,-a", "*"]
)
def test_attributes_that_say_nothing_clear_are_refused(text: str) -> None:
    with pytest.raises(ProtocolViolation, match="attributes_malformed"):
        parse_attributes(text)


def test_attributes_are_limited() -> None:
    most = ",".join(f"+n{number}=v" for number in range(ATTRIBUTES_MAX))
    assert len(parse_attributes(most)) == ATTRIBUTES_MAX
    with pytest.raises(ProtocolViolation, match="attributes_malformed"):
        parse_attributes(f"{most},+more=v")


def test_a_topic_is_made_with_attributes() -> None:
    header = CreateTopicHeader(
        topic="orders",
        default_topic="TBW102",
        read_queue_count=8,
        write_queue_count=8,
        permissions=6,
        filter_type="SINGLE_TAG",
        attributes="+message.type=TRANSACTION",
    )
    fields = write_fields(header)
    assert fields["attributes"] == "+message.type=TRANSACTION"
    assert read_header(CreateTopicHeader, fields) == header


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
VALUES = {
    str: TEXTS,
    int: st.integers(-(2**31), 2**31 - 1),
    bool: st.booleans(),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def headers(kind: type[Header]) -> st.SearchStrategy[Header]:
    fields = {
        name: VALUES[kinds[0] if (kinds := get_args(hint)) else hint]
        for name, hint in get_type_hints(kind).items()
    }
    return st.builds(kind, **fields)


def fields_of(kind: type[Header]) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(st.sampled_from(kind.__struct_encode_fields__), JSON, min_size=1)


ANY_HEADER = st.one_of([headers(kind) for kind in KINDS])
ANY_FIELDS = st.one_of([st.tuples(st.just(kind), fields_of(kind)) for kind in KINDS])


@settings(max_examples=300)
@given(ANY_HEADER)
def test_every_header_is_read_as_it_was_written(header: Header) -> None:
    fields = write_fields(header)
    assert all(isinstance(value, str) for value in fields.values())
    for ext in both(fields):
        assert read_header(type(header), ext) == header


@given(ANY_FIELDS)
def test_any_values_are_a_header_or_a_violation(
    case: tuple[type[Header], dict[str, object]],
) -> None:
    kind, fields = case
    with suppress(ProtocolViolation, RequestRefused):
        read_header(kind, raw(fields))
    with suppress(ProtocolViolation, RequestRefused):
        read_header(kind, {name: str(value) for name, value in fields.items()})


@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_or_a_violation(data: bytes) -> None:
    with suppress(ProtocolViolation):
        read_header(PullHeader, msgspec.Raw(data))
    with suppress(ProtocolViolation):
        read_fields(msgspec.Raw(data))
