"""Delayed messages that their senders take back, over gRPC and remoting."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

import pytest

from escrowmq.broker.grpc.names import timestamp
from escrowmq.broker.server import Server
from escrowmq.broker.state.recall_handles import HANDLE_CHARS_MAX, RecallHandles
from escrowmq.broker.state.row_places import KEY_FILE, PlaceCodes, RowPlace
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.native.headers import LogRangeHeader
from escrowmq.protocol.native.previews import FindMessagesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.protocol.remoting.send_headers import RecallHeader
from escrowmq.testing import message as sent_message
from tests.unit.broker.grpc_peer import DELAY, TRANSACTION, GrpcPeer, message
from tests.unit.broker.native_peer import all_rows, ask
from tests.unit.broker.restoring import back_up, restore
from tests.unit.broker.wire import (
    SEND,
    T0,
    Peer,
    clock_of,
    eventually,
    facts,
    half,
    sending,
    serving,
    visible,
)

OK, BAD_REQUEST, NOT_FOUND, TOO_LATE = 20_000, 40_000, 40_401, 42_800
SECOND_MS = 1_000
HOUR_MS = 3_600_000


def later(message_id: str, after_ms: int = 60 * SECOND_MS) -> grpc.Message:
    at = timestamp(T0 + after_ms)
    return message(message_id, message_id.encode(), kind=DELAY, delivery_timestamp=at)


async def delayed(peer: GrpcPeer, message_id: str, after_ms: int = 60 * SECOND_MS) -> str:
    """Send a delayed message; return its recall handle."""
    (entry,) = (await peer.send(later(message_id, after_ms))).entries
    assert entry.status.code == OK
    return entry.recall_handle


async def recall(peer: GrpcPeer, handle: str, topic: str = "orders") -> tuple[int, str]:
    """Recall a message; return the code and the message id of the answer."""
    asked = grpc.RecallMessageRequest(topic=grpc.Resource(name=topic), recall_handle=handle)
    answer = await peer.ask("RecallMessage", asked)
    return answer.status.code, answer.message_id


async def recall_remotely(peer: Peer, handle: str, topic: str = "orders") -> RemotingFrame:
    return await peer.ask(RequestCode.RECALL_MESSAGE, RecallHeader(topic=topic, handle=handle))


def bodies(server: Server) -> list[bytes]:
    return sorted(one.body for one in visible(server))


async def pass_time(server: Server, ms: int, *expected: bytes) -> None:
    """Let time pass, and see exactly these messages become visible before a sentinel."""
    clock_of(server).advance(ms=ms)
    await eventually(lambda: bodies(server) == sorted(expected))


async def test_a_recalled_message_never_becomes_visible(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        handle = await delayed(peer, "m1")
        await delayed(peer, "m2", 60 * SECOND_MS + 1)
        assert await recall(peer, handle) == (OK, "m1")
        assert await recall(peer, handle) == (OK, "m1")
        await pass_time(server, HOUR_MS, b"m2")
    async with serving(tmp_path) as server:
        assert await recall(GrpcPeer.of(server), handle) == (OK, "m1")
        assert bodies(server) == [b"m2"]


async def test_a_visible_message_cannot_be_recalled(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, remote = GrpcPeer.of(server), await Peer.to(server.broker_address)
        handle = await delayed(peer, "m1")
        await pass_time(server, HOUR_MS, b"m1")
        assert (await recall(peer, handle))[0] == TOO_LATE
        refused = await recall_remotely(remote, handle)
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        assert refused.remark.startswith("recall_too_late")


@pytest.mark.parametrize("delay", [{"DELAY": "9"}, {"TIMER_DELAY_MS": "60000"}])
async def test_a_remoting_client_recalls_what_it_sent(
    tmp_path: Path, delay: dict[str, str]
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        stored = await peer.ask(SEND, sending(properties={"UNIQ_KEY": "u1", **delay}), b"m1")
        told = facts(stored)
        assert told["queueOffset"] == "0"
        # The official client looks for the broker's name between the second and the third space.
        fields = urlsafe_b64decode(told["recallHandle"]).decode().split(" ")
        assert fields[:3] == ["v1", "orders", server.broker.identity.name]
        assert (int(fields[3]) > T0, fields[4]) == (True, "u1")
        for _ in range(2):
            answer = await recall_remotely(peer, told["recallHandle"])
            assert (answer.code, facts(answer)["msgId"]) == (ResponseCode.SUCCESS, "u1")
        # Either protocol recalls what the other one sent.
        assert await recall(GrpcPeer.of(server), told["recallHandle"]) == (OK, "u1")
        await peer.ask(SEND, sending(), b"visible")
        await pass_time(server, HOUR_MS, b"visible")


async def test_only_a_delayed_message_that_was_sent_alone_has_a_handle(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, remote = GrpcPeer.of(server), await Peer.to(server.broker_address)
        plain, held = [
            (await peer.send(one)).entries[0]
            for one in (
                message("m1", topic="plain"),
                message("m2", kind=TRANSACTION, topic="paid"),
            )
        ]
        assert (plain.recall_handle, held.recall_handle) == ("", "")
        both = await peer.send(later("m3"), later("m4"))
        assert all(entry.recall_handle for entry in both.entries)
        for header in (sending(), half("u1", DELAY="9"), sending("%RETRY%g", {"DELAY": "3"})):
            assert "recallHandle" not in facts(await remote.ask(SEND, header, b"x"))


async def test_a_half_message_is_not_recalled_by_the_place_that_it_has(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, remote = GrpcPeer.of(server), await Peer.to(server.broker_address)
        stored = facts(await remote.ask(SEND, half("u1", DELAY="9"), b"half"))
        place = RowPlace("", int(stored["queueOffset"]), int(stored["msgId"][16:], 16))
        made = server.broker.recall_handles.make(sent_message(b"x", deliver_at_ms=T0), place)
        assert (await recall(peer, made))[0] == NOT_FOUND


async def test_forged_handles_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, remote = GrpcPeer.of(server), await Peer.to(server.broker_address)
        handle = await delayed(peer, "m1")
        text = urlsafe_b64decode(handle)
        name = server.broker.identity.name
        other_key = RecallHandles(name, b"x" * 32)
        message_of = sent_message(b"m1", deliver_at_ms=T0 + 1)
        forged = [
            "",
            "x",
            "é",
            handle + "A",
            handle + "\n",
            handle.rstrip("=") + "====",
            "A" * (HANDLE_CHARS_MAX + 1),
            urlsafe_b64encode(b"\xff\xfe").decode(),
            urlsafe_b64encode(text.replace(b"m1", b"m2")).decode(),
            urlsafe_b64encode(text[:-1] + (b"0" if text[-1:] != b"0" else b"1")).decode(),
            # What an Apache broker would answer.
            urlsafe_b64encode(f"v1 orders {name} {T0 + 1} m1".encode()).decode(),
            other_key.make(message_of, RowPlace("", 0, 0)),
            RecallHandles("broker-b", server.broker.key).make(message_of, RowPlace("", 0, 0)),
        ]
        for one in forged:
            assert (await recall(peer, one))[0] == BAD_REQUEST, one
            refused = await recall_remotely(remote, one)
            assert refused.code in {
                ResponseCode.ILLEGAL_OPERATION,
                # A frame cannot carry every text.
                ResponseCode.INVALID_PARAMETER,
            }, one
        assert (await recall(peer, handle, "others"))[0] == 40_402
        await peer.send(message("m9", topic="others"))
        assert (await recall(peer, handle, "others"))[0] == BAD_REQUEST
        await pass_time(server, HOUR_MS, b"m1")


def test_a_message_id_may_hold_spaces_and_dots() -> None:
    handles = RecallHandles("a broker", bytes(32))
    one = sent_message(b"x", unique_key=" a . b ", deliver_at_ms=5)
    place = RowPlace("0e", 7, 4_096)
    read = handles.read(one.topic, handles.make(one, place))
    assert (read.message_id, read.place) == (" a . b ", place)
    with pytest.raises(RequestRefused, match="recall_handle_illegal"):
        handles.read("order", handles.make(one, place))


async def test_a_topic_that_is_gone_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, remote = GrpcPeer.of(server), await Peer.to(server.broker_address)
        handle = await delayed(peer, "m1")
        broker = server.broker
        await broker.writer.submit(broker.topics.remove("orders", by="me", is_forced=True))
        assert (await recall(peer, handle))[0] == 40_402
        assert (await recall_remotely(remote, handle)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_recalls_race_the_release_of_the_same_millisecond(tmp_path: Path) -> None:
    """Each message is either recalled or visible, as its answer says, and never both."""
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        names = [f"m{number:03}" for number in range(200)]
        handles = {name: await delayed(peer, name) for name in names}
        clock_of(server).advance(ms=60 * SECOND_MS)
        early = [asyncio.ensure_future(recall(peer, handles[name])) for name in names[:100]]
        release = asyncio.ensure_future(server.broker.releasing.release_due())
        await asyncio.sleep(0)
        late = [asyncio.ensure_future(recall(peer, handles[name])) for name in names[100:]]
        codes = dict(zip(names, await asyncio.gather(*early, *late), strict=True))
        await release
        # Whatever is visible by now can no longer be recalled.
        codes |= {name: await recall(peer, handles[name]) for name in names if codes[name][0] != OK}
        again = await asyncio.gather(*(recall(peer, handles[name]) for name in names))
        assert [code for code, _ in again] == [codes[name][0] for name in names]
        assert {code for code, _ in codes.values()} <= {OK, TOO_LATE}
        left = [name.encode() for name in names if codes[name][0] == TOO_LATE]
        await pass_time(server, HOUR_MS, *left)


async def test_events_and_searches_tell_of_a_recall(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, remote = GrpcPeer.of(server), await Peer.to(server.broker_address)
        handle = await delayed(peer, "m1")
        found = await ask(remote, NativeCode.FIND_MESSAGES, FindMessagesHeader(message_id="m1"))
        assert found.header.state == "waiting"
        await recall(peer, handle)
        found = await ask(remote, NativeCode.FIND_MESSAGES, FindMessagesHeader(message_id="m1"))
        assert (found.header.state, found.header.due_at_ms) == ("recalled", None)
        (told,) = await all_rows(remote, NativeCode.LIST_EVENTS, LogRangeHeader())
        assert (told.event, told.head, told.first, told.by) == ("recalled", None, 0, "client-1")
        assert (told.topic, told.queue_id) == ("orders", 1)


async def test_the_answer_to_a_recall_comes_after_its_flush(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        handle = await delayed(peer, "m1")
        before = server.broker.store.durable_end
        await recall(peer, handle)
        assert server.broker.store.durable_end > before
        assert server.broker.store.durable_end == server.broker.store.log.end


async def test_a_broker_restored_without_its_key_refuses_old_handles(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        handle = await delayed(GrpcPeer.of(server), "m1")
    (tmp_path / "ids.key").unlink()
    async with serving(tmp_path) as server:
        assert (await recall(GrpcPeer.of(server), handle))[0] == BAD_REQUEST
        await pass_time(server, HOUR_MS, b"m1")


def test_a_code_of_another_kind_of_id_does_not_fit() -> None:
    key = b"k" * 32
    recall_codes, other_codes = PlaceCodes(b"recall", key), PlaceCodes(b"transaction", key)
    assert recall_codes.fits("text", recall_codes.of("text"))
    assert not recall_codes.fits("text", other_codes.of("text"))


async def test_a_flood_of_recalls_writes_one_record_and_no_more(tmp_path: Path) -> None:
    """A repeat costs no room in the log, and forged handles reach no writer."""
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        handle = await delayed(peer, "m1")
        assert await recall(peer, handle) == (OK, "m1")
        end = server.broker.store.log.end
        answers = await asyncio.gather(*(recall(peer, handle) for _ in range(500)))
        assert set(answers) == {(OK, "m1")}
        forged = await asyncio.gather(*(recall(peer, f"{handle[:-8]}{n:08}") for n in range(500)))
        assert {code for code, _ in forged} == {BAD_REQUEST}
        assert server.broker.store.log.end == end


async def test_the_key_is_in_no_text_about_a_broker(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert repr(server.broker.key)[2:-1] not in repr(server.broker)


async def test_a_handle_from_after_a_backup_recalls_no_other_message(tmp_path: Path) -> None:
    """The key is copied along, and another delayed message has the same place since."""
    live, copy, restored = (tmp_path / name for name in ("live", "copy", "restored"))
    async with serving(live) as server:
        first = await delayed(GrpcPeer.of(server), "m0")
    back_up(live, copy)
    async with serving(live) as server:
        lost = await delayed(GrpcPeer.of(server), "m1")
    restore(copy, restored)
    (restored / KEY_FILE).write_bytes((live / KEY_FILE).read_bytes())
    async with serving(restored) as server:
        peer = GrpcPeer.of(server)
        await delayed(peer, "m2")
        assert (await recall(peer, lost))[0] == NOT_FOUND
        assert await recall(peer, first) == (OK, "m0")
        await pass_time(server, HOUR_MS, b"m2")
