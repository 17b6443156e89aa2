"""Producers that answer back-checks, and verdicts that cause them."""

from __future__ import annotations

import asyncio
from typing import Any

from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.server import Server
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.message.stored_message import StoredMessage, decode
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import Heartbeat, ProducerMembership
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.protocol.remoting.send_headers import (
    CheckTransactionHeader,
    EndTransactionHeader,
    ResumeCheckHeader,
)
from escrowmq.transaction.commands import Verdict, VerdictKind
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half
from tests.unit.broker.wire import (
    Peer,
    facts,
)

ASK, PARK = VerdictKind.ASK, VerdictKind.PARK
#: More bytes than socket buffers hold for a peer that does not read.
FLOOD = bytes(16 * 1024 * 1024)
PATIENT = {"slow_bytes": 2 * len(FLOOD), "unread_bytes_max": 4 * len(FLOOD)}


async def producer(
    server: Server, client_id: str, *, group: str = "pay", is_binary: bool = False
) -> Peer:
    """Connect a member of a producer group."""
    peer = await Peer.to(server.broker_address)
    said = Heartbeat(client_id=client_id, producers=(ProducerMembership(group=group),))
    await peer.ask(RequestCode.HEART_BEAT, body=encode_body(said), is_binary=is_binary)
    return peer


def connection_of(server: Server, client_id: str) -> ClientConnection:
    members = server.broker.clients.producers("pay")
    found = next(one.connection for one in members if one.client_id == client_id)
    assert isinstance(found, ClientConnection)
    return found


def verdict(kind: VerdictKind, half_offset: int = 0, **fields: Any) -> Verdict:  # noqa: ANN401
    values: dict[str, Any] = {"state": State.PREPARED, "checks_sent": 0, **fields}
    return Verdict(half_offset=half_offset, kind=kind, **values)


def begin(server: Server, said: Verdict) -> asyncio.Future[VerdictOutcome]:
    told: asyncio.Future[VerdictOutcome] = asyncio.get_running_loop().create_future()
    server.broker.checking.obey([said], lambda outcomes: told.set_result(outcomes[0]))
    return told


async def obey(server: Server, kind: VerdictKind, half_offset: int = 0, **fields: Any) -> str:  # noqa: ANN401
    return (await begin(server, verdict(kind, half_offset, **fields))).value


async def stall(server: Server, half_offset: int = 0) -> asyncio.Future[VerdictOutcome]:
    """Begin a check whose producer does not read."""
    told = begin(server, verdict(ASK, half_offset))
    # One check per transaction at a time: the second verdict is read after the first was sent.
    assert await obey(server, ASK, half_offset) == "busy"
    assert not told.done()
    return told


async def check(peer: Peer) -> tuple[CheckTransactionHeader, StoredMessage]:
    """Return the next back-check that the producer receives."""
    frame = await peer.until(is_check)
    assert frame.is_one_way
    return header_of(frame), decode(frame.body)


def is_check(frame: RemotingFrame) -> bool:
    return frame.code == RequestCode.CHECK_TRANSACTION_STATE and not frame.is_response


def header_of(frame: RemotingFrame) -> CheckTransactionHeader:
    told = facts(frame)
    return CheckTransactionHeader(
        topic=told["topic"],
        half_offset=int(told["tranStateTableOffset"]),
        log_offset=int(told["commitLogOffset"]),
        unique_key=told["msgId"],
        transaction_id=told["transactionId"],
        offset_message_id=told["offsetMsgId"],
        broker_name=told["bname"],
    )


def answering(header: CheckTransactionHeader, bits: int) -> EndTransactionHeader:
    """Return the answer of a stock client to a check."""
    return EndTransactionHeader(
        topic=header.topic or "",
        producer_group="pay",
        half_offset=header.half_offset,
        log_offset=header.log_offset,
        resolution_bits=bits,
        is_check_answer=True,
        unique_key=header.unique_key or "",
        transaction_id=header.transaction_id or "",
    )


def row(server: Server, half_offset: int = 0) -> Half:
    return server.broker.store.core.row(half_offset)


async def was_asked(peer: Peer) -> bool:
    """Whether a check arrives before the answer to a new request."""
    await peer.ask(RequestCode.CHECK_CLIENT_CONFIG)
    return any(map(is_check, peer.kept))


async def resume(peer: Peer, message_id: str) -> RemotingFrame:
    header = ResumeCheckHeader(offset_message_id=message_id)
    return await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
