"""What a user tries that may not do it. Each test is one attack, over a real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from escrowmq.broker.server import Server
from escrowmq.client.network.request_signer import RequestSigner
from escrowmq.model.credentials import Credentials
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.users import UserKind
from escrowmq.protocol.message.message_views import HALF_TOPIC
from escrowmq.protocol.native.headers import ByHeader, HoldHeader, ReadMessagesHeader
from escrowmq.protocol.native.previews import PreviewHalvesHeader, SoughtHalfRow
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import DecisionRow, VerdictRow
from escrowmq.protocol.native.user_headers import UserPutHeader
from escrowmq.protocol.remoting import admin_headers, bodies, client_bodies, consumer_headers
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import RemotingFrame, encode_request
from escrowmq.protocol.signing import native
from escrowmq.transaction.commands import Verdict, VerdictKind
from escrowmq.transaction.states import State
from tests.unit.broker.access_grpc import HALVES, Caller, sent_message, transaction_id_of
from tests.unit.broker.access_world import SECRET, Signed, allow, deny, guarded, put_user
from tests.unit.broker.native_peer import sent
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    Peer,
    clock_of,
    ending,
    eventually,
    facts,
    half,
    make_topic,
    sending,
    visible,
)

DENIED = ResponseCode.NO_PERMISSION


async def two_users(server: Server, *grants: str) -> tuple[Signed, Signed, RemotingFrame]:
    """Return a victim that has sent a half message, an attacker with grants, and the answer."""
    await make_topic(server, "orders", 2)
    await put_user(server, "victim", allow("Pub Topic:orders"))
    await put_user(server, "attacker", *map(allow, grants))
    victim = await Signed.to(server.broker_address, "victim")
    held = await victim.ask(SEND, half("k1"), b"secret-content")
    assert held.code == ResponseCode.SUCCESS
    return victim, await Signed.to(server.broker_address, "attacker"), held


async def test_a_user_decides_the_transaction_of_another(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        _, attacker, held = await two_users(server, "Pub Topic:*", "Pub Group:mine")
        for group in ("pay", "mine", ""):
            refused = await attacker.ask(END, ending(held, COMMIT, producer_group=group))
            assert refused.code == DENIED
        await attacker.tell_and_sync(END, ending(held, COMMIT))
        row = DecisionRow(int(facts(held)["queueOffset"]), "commit", None, None)
        with pytest.raises(RequestRefused, match="not_allowed"):
            await attacker.call(NativeCode.DECIDE_MANY, ByHeader(by="victim"), [row])
        verdict = VerdictRow(row.half_offset, "commit", 0, 0, None)
        with pytest.raises(RequestRefused, match="not_allowed"):
            await attacker.call(NativeCode.OBEY_VERDICTS, ByHeader(by="victim"), [verdict])
        assert visible(server) == []


async def test_a_user_with_the_stored_group_decides(tmp_path: Path) -> None:
    """So several users can share a producer group, if an admin says so."""
    async with guarded(tmp_path) as server:
        _, colleague, held = await two_users(server, "Pub Group:pay")
        assert (await colleague.ask(END, ending(held, COMMIT))).code == ResponseCode.SUCCESS
        assert len(visible(server)) == 1


async def test_a_grpc_client_decides_the_transaction_of_another(tmp_path: Path) -> None:
    async with guarded(tmp_path, broker={"grpc_port": 0}) as server:
        await put_user(server, "victim", allow("Pub Topic:halves"))
        await put_user(server, "attacker", allow("Pub Topic:halves"))
        victim = Caller(server.grpc_address, "victim", client_id="v")
        message = sent_message(HALVES, kind=4)
        assert await victim.code("SendMessage", {"messages": [message]}) == 20_000
        fields = {"topic": HALVES, "resolution": 1, "transaction_id": transaction_id_of(server)}
        attacker = Caller(server.grpc_address, "attacker", client_id="a")
        assert await attacker.code("EndTransaction", fields) == 40_300
        assert await victim.code("EndTransaction", fields) == 20_000
        await attacker.close()
        await victim.close()


@pytest.mark.parametrize("topic", [HALF_TOPIC, "RMQ_SYS_TRANS_OP_HALF_TOPIC"])
async def test_a_user_reads_half_messages(tmp_path: Path, topic: str) -> None:
    async with guarded(tmp_path) as server:
        grants = ("Sub,Pub,Get Topic:*", "Sub,Get Group:*")
        _, attacker, held = await two_users(server, *grants)
        pull = consumer_headers.PullHeader(
            consumer_group="g",
            topic=topic,
            queue_id=0,
            queue_offset=0,
            messages_max=32,
            sys_flag=4,
            commit_offset=0,
            wait_ms=0,
            subscription="*",
            subscription_version=0,
        )
        assert (await attacker.ask(RequestCode.PULL_MESSAGE, pull)).code == DENIED
        at = int(facts(held)["msgId"][16:], 16)
        view = admin_headers.ViewMessageHeader(topic="orders", log_offset=at)
        assert (await attacker.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)).code == DENIED
        sought = [SoughtHalfRow(int(facts(held)["queueOffset"]))]
        with pytest.raises(RequestRefused, match="not_allowed"):
            await attacker.call(NativeCode.PREVIEW_HALVES, PreviewHalvesHeader(), sought)
        reading = ReadMessagesHeader(topic=topic, queue_id=0)
        with pytest.raises(RequestRefused, match="not_allowed"):
            await attacker.call(NativeCode.READ_MESSAGES, reading)


async def test_a_user_gets_a_message_by_sending_it_back(tmp_path: Path) -> None:
    """The message of another topic would be delivered to the attacker's group."""
    async with guarded(tmp_path) as server:
        victim, attacker, _ = await two_users(server, "Sub Group:mine", "Sub Topic:mine")
        stored = await victim.ask(SEND, sending(), b"1")
        back = consumer_headers.SendBackHeader(
            log_offset=int(facts(stored)["msgId"][16:], 16),
            consumer_group="mine",
            delay_level=0,
            origin_topic="mine",
        )
        refused = await attacker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert refused.code == DENIED
        assert "Topic:orders" in refused.remark


def heartbeat(client_id: str, group: str = "pay") -> bytes:
    said = client_bodies.Heartbeat(
        client_id=client_id, producers=(client_bodies.ProducerMembership(group=group),)
    )
    return bodies.encode_body(said)


async def test_a_user_poses_as_a_group_to_receive_its_checks(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        victim, attacker, held = await two_users(server, "Pub Topic:orders")
        beat = await attacker.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
        assert beat.code == ResponseCode.SUCCESS
        told: list[object] = []
        checking = server.broker.checking
        row = int(facts(held)["queueOffset"])
        verdict = Verdict(
            half_offset=row, kind=VerdictKind.ASK, state=State.PREPARED, checks_sent=0
        )
        checking.obey([verdict], told.extend)
        await eventually(lambda: told)
        assert [str(one) for one in told] == ["no_producer"]
        # The sender gets it, though the attacker said first that it is a producer of the group.
        await victim.ask(RequestCode.HEART_BEAT, body=heartbeat("v"))
        told.clear()
        checking.obey([verdict], told.extend)
        check = await victim.peer.until(
            lambda one: one.code == RequestCode.CHECK_TRANSACTION_STATE and not one.is_response
        )
        assert b"secret-content" in check.body
        await attacker.call(NativeCode.STATUS)
        codes = [one.code for one in attacker.peer.kept]
        assert RequestCode.CHECK_TRANSACTION_STATE not in codes


async def test_a_user_takes_the_place_of_a_producer_or_makes_it_leave(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        victim, attacker, _ = await two_users(server, "Pub Topic:*")
        await victim.ask(RequestCode.HEART_BEAT, body=heartbeat("v"))
        taken = await attacker.ask(RequestCode.HEART_BEAT, body=heartbeat("v"))
        assert taken.code == DENIED
        leaving = consumer_headers.UnregisterHeader(client_id="v", producer_group="pay")
        assert (await attacker.ask(RequestCode.UNREGISTER_CLIENT, leaving)).code == DENIED
        (producer,) = server.broker.clients.producers("pay")
        caller = producer.connection.caller
        assert caller is not None
        assert caller.name == "victim"


async def test_own_requests_come_unsigned_or_with_a_remoting_signature(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "root", kind=UserKind.SUPER)
        for address in (server.broker_address, server.name_address):
            unsigned = await Signed.to(address)
            with pytest.raises(RequestRefused, match="not_authenticated"):
                await unsigned.call(NativeCode.USER_PUT, UserPutHeader(user="eve", by="x"))
        root = await Signed.to(server.broker_address, "root")
        signed = RequestSigner(Credentials("root", SECRET))

        class AsRemoting:
            def sign(self, code: int, fields: dict[str, str], body: bytes) -> None:
                del code
                signed.sign(RequestCode.HEART_BEAT, fields, body)

        header = UserPutHeader(user="eve", by="x")
        frame = encode_request(NativeCode.USER_PUT, 5, header=header, signer=AsRemoting())
        root.peer.write(frame)
        answer = await root.peer.until(lambda one: one.opaque == 5)
        assert answer.remark.startswith("credentials_malformed")
        assert set(server.broker.catalog.users) == {"root"}


async def test_a_native_request_is_sent_again(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:orders"))
        shop = await Signed.to(server.broker_address, "shop")
        frame = shop.call_frame(NativeCode.SEND_MANY, None, [sent()])
        assert (await shop.exchange(frame)).code == ResponseCode.SUCCESS
        assert (await shop.exchange(frame)).remark.startswith("replayed")
        # On another connection, too.
        other = await Peer.to(server.broker_address)
        other.write(frame)
        answer = await other.until(lambda one: one.is_response)
        assert answer.remark.startswith("replayed")
        assert len(visible(server)) == 1


async def test_an_old_native_request_is_sent_late(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:orders"))
        shop = await Signed.to(server.broker_address, "shop")
        frame = shop.call_frame(NativeCode.SEND_MANY, None, [sent()])
        clock_of(server).advance(ms=native.SLACK_MS + 10_000)
        assert (await shop.exchange(frame)).remark.startswith("request_too_old")
        assert visible(server) == []


async def test_the_body_of_a_signed_frame_is_exchanged(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:orders"))
        shop = await Signed.to(server.broker_address, "shop")
        frames = [
            shop.frame(SEND, sending(), b"original"),
            shop.call_frame(NativeCode.SEND_MANY, None, [sent(b"original")]),
        ]
        for frame in frames:
            shop.peer.write(frame.replace(b"original", b"exchange"))
        answers = [await shop.peer.until(lambda one: one.is_response) for _ in frames]
        assert {one.remark.partition(":")[0] for one in answers} == {"credentials_wrong"}
        assert visible(server) == []


@pytest.mark.parametrize(
    "topic",
    [
        "order-",
        "order-/../secret",
        "../secret",
        "order-%2e%2e",
        "ORDER-1",
        "*",
        "order*",
        "secret\x00order-1",
        "%RETRY%secret",
        "%RETRY%",
        "%DLQ%order-1",
        "%SINK%order-1",
        " order-1",
        "",
    ],
)
async def test_a_name_plays_tricks(tmp_path: Path, topic: str) -> None:
    """A pattern is a prefix and nothing else; what a name means is the topic of that very name."""
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:order-*"), deny("Pub Topic:order-secret"))
        shop = await Signed.to(server.broker_address, "shop")
        answer = await shop.ask(SEND, sending(topic), b"1")
        stored = set(server.broker.catalog.topics)
        assert stored <= ({topic} if topic.startswith("order-") else set())
        if not topic.startswith("order-"):
            assert answer.code != ResponseCode.SUCCESS


async def test_a_user_joins_the_transaction_of_another(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await make_topic(server, "orders", 2)
        for name in ("victim", "attacker"):
            await put_user(server, name, allow("Pub Topic:orders"))
        victim = await Signed.to(server.broker_address, "victim")
        hold = HoldHeader(producer_group="pay", transaction_id="t1", number=0)
        await victim.call(NativeCode.HOLD_HALVES, hold, [sent()])
        attacker = await Signed.to(server.broker_address, "attacker")
        more = msgspec.structs.replace(hold, number=1)
        with pytest.raises(RequestRefused, match="transaction_of_other_user"):
            await attacker.call(NativeCode.HOLD_HALVES, more, [sent(b"forged")])
        await victim.call(NativeCode.HOLD_HALVES, more, [sent(b"2")])


async def test_a_user_gives_itself_rights(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:*"), allow("Sub Topic:*"))
        shop = await Signed.to(server.broker_address, "shop")
        for header in (
            UserPutHeader(user="shop", by="root", roles="admin", seen=0),
            UserPutHeader(user="eve", by="root", kind="super"),
        ):
            with pytest.raises(RequestRefused, match="not_allowed"):
                await shop.call(NativeCode.USER_PUT, header)
        assert set(server.broker.catalog.users) == {"shop"}


async def test_errors_and_lists_tell_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "root", kind=UserKind.SUPER)
        told: list[str] = []
        for user, secret in (("root", "guess-of-a-secret"), ("root", SECRET), ("", SECRET)):
            peer = await Signed.to(server.broker_address, user, secret)
            try:
                answer = await peer.call(NativeCode.USER_LIST)
                told.append(repr(answer))
            except EscrowError as error:
                told.append(str(error))
        gate = server.broker.gate
        assert gate is not None
        known = gate.users.named("root")
        told += [repr(known), repr(server.broker), repr(server.broker.catalog.users), caplog.text]
        for text in told:
            assert SECRET not in text
            assert "guess-of-a-secret" not in text


async def test_a_response_without_a_request_comes_from_a_stranger(tmp_path: Path) -> None:
    """Responses are not signed, so they count only as answers to a question on their connection."""
    async with guarded(tmp_path) as server:
        stranger = await Peer.to(server.broker_address)
        frame = encode_request(0, 1)
        stranger.write(frame.replace(b'"flag":0', b'"flag":1'))
        stranger.write(encode_request(RequestCode.GET_BROKER_CONFIG, 2))
        answer = await stranger.until(lambda one: one.is_response)
        assert answer.code == DENIED
        async with asyncio.timeout(20):
            await stranger.closed()
