"""Every request with no credentials, a wrong secret, a viewer, one grant too few, and just enough.

A refused cell also asserts that nothing changed.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from escrowmq.access.needs import Needs
from escrowmq.broker.access import needs_grpc, needs_http, needs_native, needs_remoting
from escrowmq.broker.server import Server
from escrowmq.model.catalog import Group
from escrowmq.model.errors import EscrowError
from escrowmq.model.users import Action, Role
from escrowmq.protocol.native.frames import NativeReply
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.remoting.codes import RequestCode
from tests.unit.broker.access_cases import (
    GROUP,
    NATIVE_CASES,
    REMOTING_CASES,
    Case,
    Stored,
)
from tests.unit.broker.access_grpc import (
    GRPC_CASES,
    HALVES,
    Caller,
    sent_message,
    transaction_id_of,
)
from tests.unit.broker.access_world import SECRET, Signed, allow, deny, guarded, put_user
from tests.unit.broker.wire import SEND, eventually, facts, half, make_topic, sending

REFUSED = ("not_allowed", "not_authenticated", "credentials_wrong")
ALL_CASES: Mapping[int, Case] = {**REMOTING_CASES, **NATIVE_CASES}
HTTP_GRANTS = dict.fromkeys(("/", "/status", "/metrics"), ("Get Cluster",))
#: RocketMQ's UNAUTHORIZED and FORBIDDEN, and the codes with which telemetry streams end. To a
#: client that is about to write, a refused stream may look reset (13).
REFUSED_CODES = (40_100, 40_300, -16, -7, -13)


class Cell(NamedTuple):
    """One user, and whether its request is refused."""

    user: str
    #: Whether the gate lets the request in.
    is_let_in: bool = False
    secret: str = SECRET


def alternatives(grant: str) -> list[str]:
    """The grants of which one is enough."""
    actions, resource = grant.split(" ")
    return [f"{action} {resource}" for action in actions.split("|")]


def may_view(grants: Iterable[str]) -> bool:
    """Whether a viewer, who may get and list everything, has these grants."""
    found = [{grant.split(" ")[0] for grant in alternatives(one)} for one in grants]
    return all(actions & {Action.GET.value, Action.LIST.value} for actions in found)


async def with_users(server: Server, grants: tuple[str, ...]) -> list[Cell]:
    """Create the users of a request's cells; the one that may do it comes last."""
    await put_user(server, "exact", *(allow(alternatives(one)[0]) for one in grants))
    await put_user(server, "watcher", roles=[Role.VIEWER])
    cells = [Cell(""), Cell("exact", secret="not-the-secret")]
    for number, lacked in enumerate(grants):
        name = f"lacking{number}"
        await put_user(server, name, allow("All *"), *map(deny, alternatives(lacked)))
        cells.append(Cell(name))
    cells.append(Cell("watcher", may_view(grants)))
    return [*cells, Cell("exact", may_view(()))]


async def with_messages(server: Server) -> Stored:
    """Store what requests point at: a topic, a group, a visible and a half message."""
    await put_user(server, "sender", allow("Pub Topic:orders"), allow("Pub Topic:halves"))
    await make_topic(server, "orders", 2)
    sender = await Signed.to(server.broker_address, "sender")
    stored = facts(await sender.ask(SEND, sending(), b"visible"))
    held = facts(await sender.ask(SEND, half("k1"), b"half"))
    await server.broker.writer.submit(server.broker.groups.put(Group(name=GROUP)))
    return Stored(
        int(stored["msgId"][16:], 16), int(held["queueOffset"]), int(held["msgId"][16:], 16)
    )


def state_of(server: Server) -> object:
    """What a refused request must not change."""
    broker = server.broker
    return (
        broker.store.durable_end,
        set(broker.clients.producer_groups()),
        set(broker.clients.consumer_groups()),
        dict(broker.locks._locks),
        dict(broker.meta.offsets),
        set(broker.groups.paused),
        set(broker.life._heard),
    )


async def outcome(peer: Signed, code: int, case: Case, stored: Stored) -> str:
    """Send a request; return the code of the gate's refusal, or an empty text."""
    example = case.make(stored)
    if code in NATIVE_REQUESTS:
        told = await native_outcome(peer, NativeCode(code), case, stored)
    else:
        answer = await peer.ask(code, example.header, example.body)
        told = answer.remark
    return next((one for one in REFUSED if told.startswith(one)), "")


async def native_outcome(peer: Signed, code: NativeCode, case: Case, stored: Stored) -> str:
    example = case.make(stored)
    try:
        answer: NativeReply = await peer.call(code, example.header, example.rows)  # type: ignore[arg-type]  # the case's own
    except EscrowError as error:
        return str(error)
    assert answer is not None
    return ""


def name_of(code: int) -> str:
    return NativeCode(code).name if code in NATIVE_REQUESTS else RequestCode(code).name


async def failed_cells(data: Path, code: int) -> tuple[int, list[str]]:
    """Try all cells of a request; return their number, and those that went wrong."""
    case, wrong = ALL_CASES[code], []
    async with guarded(data) as server:
        stored = await with_messages(server)
        cells = await with_users(server, case.grants)
        for cell in cells:
            before = state_of(server)
            peer = await Signed.to(server.broker_address, cell.user, cell.secret)
            told = await outcome(peer, code, case, stored)
            if bool(told) == cell.is_let_in:
                wrong.append(f"{cell.user or 'nobody'}: {told or 'let in'}")
            if not cell.is_let_in and state_of(server) != before:
                wrong.append(f"{cell.user or 'nobody'}: changed something")
            await peer.peer.closed()
    return len(cells), wrong


@pytest.mark.parametrize("code", ALL_CASES, ids=name_of)
async def test_a_request_is_done_for_those_who_may_and_for_nobody_else(
    tmp_path: Path, code: int
) -> None:
    cells, wrong = await failed_cells(tmp_path, code)
    assert wrong == []
    assert cells == 4 + len(ALL_CASES[code].grants)


async def failed_calls(data: Path, name: str) -> tuple[int, list[str]]:
    """Try all cells of a gRPC method; return their number, and those that went wrong."""
    case, wrong = GRPC_CASES[name], []
    async with guarded(data, broker={"grpc_port": 0}) as server:
        await with_messages(server)
        fields = dict(case.fields)
        if name == "EndTransaction":
            fields["transaction_id"] = await held_over_grpc(server)
        cells = await with_users(server, case.grants)
        for cell in cells:
            before = state_of(server)
            caller = Caller(server.grpc_address, cell.user, cell.secret)
            code = await caller.code(name, fields)
            await caller.close()
            is_let_in = code not in REFUSED_CODES
            if is_let_in != cell.is_let_in:
                wrong.append(f"{cell.user or 'nobody'}: {code}")
            if not cell.is_let_in and state_of(server) != before:
                wrong.append(f"{cell.user or 'nobody'}: changed something")
            # The next cell has the same client id, and another user.
            await eventually(lambda: not server.broker.user_of("c1"))
    return len(cells), wrong


async def held_over_grpc(server: Server) -> str:
    """Send a half message with gRPC; return its transaction id."""
    sender = Caller(server.grpc_address, "sender", client_id="s1")
    message = sent_message(HALVES, kind=4, key="k2")
    assert await sender.code("SendMessage", {"messages": [message]}) == 20_000
    await sender.close()
    return transaction_id_of(server)


@pytest.mark.parametrize("name", GRPC_CASES)
async def test_a_method_is_done_for_those_who_may_and_for_nobody_else(
    tmp_path: Path, name: str
) -> None:
    cells, wrong = await failed_calls(tmp_path, name)
    assert wrong == []
    assert cells == 4 + len(GRPC_CASES[name].grants)


async def status_of_page(address: str, path: str, user: str, secret: str) -> int:
    """Return the status of a page."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    basic = b64encode(f"{user}:{secret}".encode()).decode()
    sent = f"Authorization: Basic {basic}\r\n" if user else ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n{sent}\r\n".encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ")[1])


@pytest.mark.parametrize("path", needs_http.HTTP_NEEDS)
async def test_a_page_is_shown_to_those_who_may_see_it(tmp_path: Path, path: str) -> None:
    grants = HTTP_GRANTS.get(path)
    async with guarded(tmp_path, broker={"http_port": 0}) as server:
        for cell in await with_users(server, grants or ()):
            status = await status_of_page(server.http_address, path, cell.user, cell.secret)
            if grants is None or cell.is_let_in:
                assert status == 200
            else:
                is_known = cell.user and cell.secret == SECRET
                assert status == (403 if is_known else 401)


def test_every_entry_of_the_tables_has_a_case() -> None:
    assert REMOTING_CASES.keys() == needs_remoting.REMOTING_NEEDS.keys()
    assert NATIVE_CASES.keys() == needs_native.NATIVE_NEEDS.keys() == NATIVE_REQUESTS.keys()
    assert GRPC_CASES.keys() == needs_grpc.GRPC_NEEDS.keys()


def test_the_matrix_has_at_least_five_hundred_cells() -> None:
    remoting = sum(4 + len(case.grants) for case in ALL_CASES.values())
    grpc = sum(4 + len(case.grants) for case in GRPC_CASES.values())
    assert remoting + grpc + 5 * len(HTTP_GRANTS) >= 500


def _open(*_: object) -> Needs:
    return ()


@pytest.mark.parametrize(
    ("table", "code"),
    [
        (needs_remoting.REMOTING_NEEDS, code)
        for code in (
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.END_TRANSACTION,
            RequestCode.PULL_MESSAGE,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            RequestCode.DELETE_TOPIC_IN_BROKER,
        )
    ]
    + [
        (needs_native.NATIVE_NEEDS, code)
        for code in (NativeCode.READ_LOG, NativeCode.HOLD_HALVES, NativeCode.USER_PUT)
    ],
    ids=lambda one: name_of(one) if isinstance(one, int) else "",
)
async def test_a_check_that_is_taken_away_turns_cells_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: dict[int, object], code: int
) -> None:
    monkeypatch.setitem(table, code, _open)
    _, wrong = await failed_cells(tmp_path, code)
    assert any(one.startswith("lacking") for one in wrong)
