"""A broker that asks who its clients are."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from escrowmq.broker.access.gate import AccessGate
from escrowmq.broker.access.needs_remoting import REMOTING_NEEDS
from escrowmq.broker.access.serving import TOKEN_FILE
from escrowmq.broker.net.http_admission import HttpLink
from escrowmq.client.network.request_signer import RequestSigner
from escrowmq.model.credentials import Credentials
from escrowmq.model.errors import RequestRefused
from escrowmq.model.users import UserKind
from escrowmq.protocol.grpc.messages import Resource
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.user_headers import UserPutHeader
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import encode_request
from tests.unit.broker.access_grpc import Caller
from tests.unit.broker.access_world import (
    SECRET,
    Signed,
    allow,
    guarded,
    keeper,
    put_user,
    remove_user,
)
from tests.unit.broker.wire import SEND, Peer, ending, eventually, half, sending, visible


async def test_a_user_with_the_grant_sends_and_no_other_does(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:orders"))
        shop = await Signed.to(server.broker_address, "shop")
        assert (await shop.ask(SEND, sending(), b"1")).code == ResponseCode.SUCCESS
        refused = await shop.ask(SEND, sending("other"), b"2")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert refused.remark.startswith("not_allowed: an admin grants it")
        for fact in ("user='shop'", "action='Pub'", "resource='Topic:other'", "policy=''"):
            assert fact in refused.remark
        assert [one.body for one in visible(server)] == [b"1"]
        assert server.broker.topics.get("other") is None


@pytest.mark.parametrize(
    ("user", "secret", "why"),
    [
        ("", SECRET, "not_authenticated"),
        ("shop", "another-secret", "credentials_wrong"),
        ("nobody", SECRET, "credentials_wrong"),
        ("off", SECRET, "user_disabled"),
    ],
)
async def test_without_valid_credentials_nothing_is_done(
    tmp_path: Path, user: str, secret: str, why: str
) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:orders"))
        await put_user(server, "off", allow("Pub Topic:orders"), is_enabled=False)
        names = await Signed.to(server.name_address, user, secret)
        peer = await Signed.to(server.broker_address, user, secret)
        for one in (names, peer):
            refused = await one.ask(SEND, sending(), b"1")
            assert refused.code == ResponseCode.NO_PERMISSION
            assert refused.remark.startswith(why)
            assert secret not in refused.remark
        with pytest.raises(RequestRefused, match=why):
            await peer.call(NativeCode.STATUS)
        assert visible(server) == []


async def test_both_secrets_are_valid_and_a_retired_one_is_not(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        grant = allow("Pub Topic:orders")
        await put_user(server, "shop", grant, secrets=("new-secret", SECRET))
        old = await Signed.to(server.broker_address, "shop")
        new = await Signed.to(server.broker_address, "shop", "new-secret")
        for peer in (old, new):
            assert (await peer.ask(SEND, sending())).code == ResponseCode.SUCCESS
        await put_user(server, "shop", grant, secrets=("new-secret",))
        assert (await old.ask(SEND, sending())).code == ResponseCode.NO_PERMISSION
        assert (await new.ask(SEND, sending())).code == ResponseCode.SUCCESS


async def test_a_change_of_policies_counts_from_the_next_request_on(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop")
        shop = await Signed.to(server.broker_address, "shop")
        assert (await shop.ask(SEND, sending())).code == ResponseCode.NO_PERMISSION
        await put_user(server, "shop", allow("Pub Topic:orders"))
        assert (await shop.ask(SEND, sending())).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("change", ["removed", "disabled", "revoked"])
async def test_the_connections_of_a_user_that_may_do_less_are_cut(
    tmp_path: Path, change: str
) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:orders"))
        shop = await Signed.to(server.broker_address, "shop")
        assert (await shop.ask(SEND, sending())).code == ResponseCode.SUCCESS
        if change == "removed":
            await remove_user(server, "shop")
        else:
            await put_user(server, "shop", is_enabled=change == "revoked")
        await shop.peer.is_cut()


async def test_a_connection_belongs_to_one_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        for name in ("shop", "ann"):
            await put_user(server, name, allow("Pub Topic:orders"))
        shop = await Signed.to(server.broker_address, "shop")
        assert (await shop.ask(SEND, sending())).code == ResponseCode.SUCCESS
        shop.signer = RequestSigner(Credentials("ann", SECRET))
        refused = await shop.ask(SEND, sending())
        assert refused.remark.startswith("other_user")
        shop.signer = None
        assert (await shop.ask(SEND, sending())).remark.startswith("not_authenticated")


async def test_a_policy_with_a_source_counts_only_there(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "here", allow("Pub Topic:orders", "127.0.0.0/8"))
        await put_user(server, "there", allow("Pub Topic:orders", "10.0.0.0/8"))
        here = await Signed.to(server.broker_address, "here")
        assert (await here.ask(SEND, sending())).code == ResponseCode.SUCCESS
        there = await Signed.to(server.broker_address, "there")
        assert (await there.ask(SEND, sending())).code == ResponseCode.NO_PERMISSION


async def test_the_local_admin_has_a_token_and_nobody_else_comes_in(tmp_path: Path) -> None:
    """So is it after the users were lost, too."""
    async with guarded(tmp_path) as server:
        path = tmp_path / TOKEN_FILE
        assert path.stat().st_mode & 0o777 == 0o600
        token = Credentials.from_file(path)
        admin = Signed(await Peer.to(server.broker_address), RequestSigner(token))
        header = UserPutHeader(user="ann", kind="super", by="me", secret=SECRET)
        await admin.call(NativeCode.USER_PUT, header)
        ann = await Signed.to(server.broker_address, "ann")
        assert (await ann.ask(SEND, sending())).code == ResponseCode.SUCCESS
        assert server.broker.catalog.was_access_on
    assert not path.exists()
    async with guarded(tmp_path) as server:
        # The token of another run is worth nothing.
        late = Signed(await Peer.to(server.broker_address), RequestSigner(token))
        with pytest.raises(RequestRefused, match="credentials_wrong"):
            await late.call(NativeCode.STATUS)


async def test_the_user_is_who_decided_and_who_sent(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:orders"))
        shop = await Signed.to(server.broker_address, "shop")
        held = await shop.ask(SEND, half("k1"), b"1")
        assert held.code == ResponseCode.SUCCESS
        ended = await shop.ask(RequestCode.END_TRANSACTION, ending(held, 0x8))
        assert ended.code == ResponseCode.SUCCESS
        core = server.broker.store.core
        stored = core.half(0)
        assert stored is not None
        assert core.names.origins[stored.origin].user == "shop"
        assert core.table.decided_by(stored)[0] == "shop"


async def test_what_an_unknown_client_may_send_is_limited(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        large = await Signed.to(server.broker_address)
        large.peer.write(encode_request(SEND, 1, header=sending(), body=bytes(6 * 1024 * 1024)))
        await large.peer.is_cut()
        # The same frame of a user is accepted, up to the broker's limit.
        await put_user(server, "shop", allow("Pub Topic:orders"))
        shop = await Signed.to(server.broker_address, "shop")
        await shop.call(NativeCode.STATUS)
        refused = await shop.ask(SEND, sending(), bytes(6 * 1024 * 1024))
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL


async def test_failures_of_an_address_wait_ever_longer_and_others_do_not(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:orders"))
        gate = server.broker.gate
        assert gate is not None
        bad = await Signed.to(server.broker_address, "shop", "wrong")
        for _ in range(3):
            assert (await bad.ask(SEND, sending())).remark.startswith("credentials_wrong")
        frames = [bad.frame(SEND, sending()) for _ in range(4)]
        for frame in frames:
            bad.peer.write(frame)
        await eventually(lambda: gate.refused["credentials_wrong"] == 7)
        good = await Signed.to(server.broker_address, "shop")
        assert (await good.ask(SEND, sending())).code == ResponseCode.SUCCESS
        # The good answer came before those that wait.
        assert not bad.peer.kept
        assert gate.failures._waiting_all > 0


async def test_too_many_failures_on_a_connection_cut_it(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        bad = await Signed.to(server.broker_address)
        bad.peer.write(b"".join(bad.frame(SEND, sending()) for _ in range(40)))
        await bad.peer.is_cut()


def test_credentials_show_no_secret() -> None:
    credentials = Credentials("shop", SECRET)
    assert SECRET not in repr(credentials)
    with pytest.raises(TypeError):
        msgspec.json.encode(credentials)


async def test_a_super_user_is_changed_by_super_users_only(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "ann", kind=UserKind.SUPER)
        await put_user(server, "bob", allow("All *"))
        bob = await Signed.to(server.broker_address, "bob")
        for header in (
            UserPutHeader(user="eve", kind=" Super", by="bob"),
            UserPutHeader(user="ann", kind="normal", by="bob", seen=0),
        ):
            with pytest.raises(RequestRefused, match="only a super user"):
                await bob.call(NativeCode.USER_PUT, header)
        await bob.call(NativeCode.USER_PUT, UserPutHeader(user="eve", by="bob"))
        assert set(server.broker.catalog.users) == {"ann", "bob", "eve"}


async def test_the_gate_forgets_closed_connections(tmp_path: Path) -> None:
    async with guarded(tmp_path, broker={"grpc_port": 0, "http_port": 0}) as server:
        await put_user(server, "shop", allow("Pub Topic:orders"))
        gate = server.broker.gate
        assert gate is not None
        shop = await Signed.to(server.broker_address, "shop")
        stranger = await Peer.to(server.broker_address)
        caller = Caller(server.grpc_address, "shop")
        assert (await shop.ask(SEND, sending())).code == ResponseCode.SUCCESS
        await caller.code("QueryRoute", {"topic": Resource(name="orders")})
        await eventually(lambda: len(gate._unknown) == 1)
        assert len(gate._links["shop"]) == 2
        await caller.close()
        await shop.peer.closed()
        await stranger.closed()
        await eventually(lambda: not gate._links and not gate._unknown)


@dataclass(eq=False)
class FarLink(HttpLink):
    """A connection from another machine."""

    peer_host: str = "192.0.2.7"


@pytest.mark.parametrize("requires_tls", [True, False])
async def test_a_client_on_another_machine_needs_tls(tmp_path: Path, *, requires_tls: bool) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop")
        gate = AccessGate(
            server.broker.catalog, keeper(), server._clock.now_ms, requires_tls=requires_tls
        )
        fields = {"topic": "orders"}
        RequestSigner(Credentials("shop", SECRET)).sign(SEND, fields, b"")
        basic = "Basic " + b64encode(f"shop:{SECRET}".encode()).decode()
        if requires_tls:
            with pytest.raises(RequestRefused, match="tls_required"):
                gate.admit_remoting(FarLink(), SEND, fields, b"")
        else:
            assert gate.admit_remoting(FarLink(), SEND, fields, b"").name == "shop"
        # A secret itself is never taken without TLS.
        with pytest.raises(RequestRefused, match="tls_required"):
            gate.admit_http(FarLink(), "/status", basic)
        for link in (
            FarLink(is_tls=True),
            FarLink(peer_host="127.0.0.1"),
            FarLink(peer_host="::1"),
        ):
            assert gate.admit_remoting(link, SEND, fields, b"").name == "shop"
        assert gate.admit_http(FarLink(is_tls=True), "/status", basic).name == "shop"


async def test_a_token_of_the_local_admin_is_taken_from_this_machine_only(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        gate = server.broker.gate
        assert gate is not None
        token = Credentials.from_file(tmp_path / TOKEN_FILE)
        fields: dict[str, str] = {}
        RequestSigner(token).sign(NativeCode.STATUS, fields, b"")
        far = FarLink(is_tls=True)
        with pytest.raises(RequestRefused, match="credentials_wrong"):
            gate.admit_remoting(far, NativeCode.STATUS, fields, b"")
        near = FarLink(peer_host="127.0.0.1")
        assert gate.admit_remoting(near, NativeCode.STATUS, fields, b"").is_super


async def test_a_handler_without_an_entry_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(REMOTING_NEEDS, RequestCode.PULL_MESSAGE)
    with pytest.raises(RequestRefused, match="needs_missing"):
        async with guarded(tmp_path):
            pass
