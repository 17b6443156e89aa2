"""The broker refuses a name that is too long at its edge and stores nothing of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from escrowmq import Consumer, Message, Producer
from escrowmq.broker.config import BrokerConfig
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.limits import NAME_CHARS_MAX, SHOWN_CHARS_MAX
from escrowmq.protocol.native.headers import HoldHeader, HoldManyHeader
from escrowmq.protocol.native.operator_headers import DecideByHandHeader
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from tests.unit.broker.native_peer import ask, sent, sent_in
from tests.unit.broker.wire import SEND, Peer, half, serving
from tests.unit.protocol.request_headers import REQUEST_HEADERS
from tests.unit.protocol.test_long_names import text_fields, valid

HUGE = "x" * 10_000_000
LONG = "x" * (NAME_CHARS_MAX + 1)
#: Requests that only a broker sends.
TO_CLIENTS = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
}


async def test_no_request_gets_a_name_of_ten_megabytes_into_the_store(tmp_path: Path) -> None:
    kinds = {code: kind for code, kind in REQUEST_HEADERS.items() if code not in TO_CLIENTS}
    kinds |= {code: request.header for code, request in NATIVE_REQUESTS.items()}  # type: ignore[misc]
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        before = server.broker.store.log.end
        for code, kind in kinds.items():
            if code not in server.broker._handlers:
                continue
            # One field is enough: the protocol tests cover all fields of all headers.
            for field in text_fields(kind)[:1]:
                fields = valid(kind) | {field.encode_name: HUGE}
                opaque = int(code) + 1_000_000
                head = msgspec.json.encode({"code": code, "opaque": opaque, "extFields": fields})
                size = 4 + len(head)
                peer.write(size.to_bytes(4, "big") + len(head).to_bytes(4, "big") + head)
                answer = await peer.until(lambda one, opaque=opaque: one.opaque == opaque)  # type: ignore[misc]
                assert answer.code == ResponseCode.INVALID_PARAMETER, code
                assert "name_too_long" in answer.remark
                assert len(answer.remark) < 400
        heartbeat = msgspec.json.encode({"clientID": HUGE})
        answer = await peer.ask(RequestCode.HEART_BEAT, body=heartbeat)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert server.broker.store.log.end == before
        assert server.broker.clients.producer_groups() == []


@pytest.mark.parametrize("name", ["PGROUP", "UNIQ_KEY"])
async def test_a_half_message_whose_properties_name_too_much_is_refused(
    tmp_path: Path, name: str
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        before = server.broker.store.log.end
        answer = await peer.ask(SEND, half("k", **{name: LONG}) if name == "PGROUP" else half(LONG))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert name in answer.remark
        assert server.broker.store.log.end == before


@pytest.mark.parametrize("control", ["\0", "\n", "\x7f", "\x85"])
async def test_a_group_or_a_ledger_with_a_control_character_is_refused(
    control: str, tmp_path: Path
) -> None:
    name = f"pa{control}y"
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        before = server.broker.store.log.end
        answer = await peer.ask(SEND, half("k", PGROUP=name))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "name_illegal" in answer.remark
        for group, ledger in ((name, ""), ("pay", name)):
            many = HoldManyHeader(producer_group=group, ledger=ledger)
            one = HoldHeader(producer_group=group, ledger=ledger, transaction_id="t", number=0)
            with pytest.raises(RequestRefused, match="name_illegal"):
                await ask(peer, NativeCode.HOLD_MANY, many, (sent_in("t"),))
            with pytest.raises(RequestRefused, match="name_illegal"):
                await ask(peer, NativeCode.HOLD_HALVES, one, (sent(),))
        assert server.broker.store.log.end == before


async def test_a_reason_is_cut_and_not_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("k"))
        header = DecideByHandHeader(
            half_offset=0, by="ann", resolution="rollback", reason="r" * (SHOWN_CHARS_MAX + 9)
        )
        settled = (await ask(peer, NativeCode.DECIDE_BY_HAND, header)).header
        assert settled.decided_by.count("r") == SHOWN_CHARS_MAX


def test_a_broker_has_a_short_name() -> None:
    BrokerConfig(name="x" * 127, cluster="x" * 127)
    with pytest.raises(RequestRefused, match=r"broker\.name"):
        BrokerConfig(name="x" * 128)
    with pytest.raises(RequestRefused, match=r"broker\.cluster"):
        BrokerConfig(cluster="x" * 128)


def test_the_sdk_refuses_the_same_before_anything_is_sent() -> None:
    for message in (Message(topic=LONG), Message(topic="t", message_id=LONG)):
        with pytest.raises(RequestRefused, match="name_too_long"):
            message.property_bytes()
    consumer = Consumer("127.0.0.1:1", group="g")
    for topic, tag in ((LONG, "*"), ("t", "t" * 10_000)):
        with pytest.raises(RequestRefused, match="name_too_long"):
            consumer.subscribe(topic, tag)
    with pytest.raises(RequestRefused, match="group_illegal"):
        Consumer("127.0.0.1:1", group=LONG)
    with pytest.raises(RequestRefused, match="group_illegal"):
        Producer("127.0.0.1:1", group=LONG)
