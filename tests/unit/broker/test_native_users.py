"""Users over a real socket: created, changed, listed, explained; a secret is told once."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.access.secret_box import ENV_KEY, SecretBox, SecretKeeper
from escrowmq.broker.config import AccessConfig
from escrowmq.broker.server import Server
from escrowmq.model.errors import EscrowError, ProtocolViolation, RequestRefused, StoreUnusable
from escrowmq.model.secret import Secret
from escrowmq.model.users import POLICIES_MAX, Role, UserKind
from escrowmq.protocol.native.frames import NativeReply
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.user_headers import (
    AclExplainHeader,
    ListUsersHeader,
    PolicyRow,
    UserPutAnswer,
    UserPutHeader,
    UserRemoveHeader,
    UserRow,
)
from escrowmq.transaction.memory.catalog import KeptUser
from tests.unit.broker.native_peer import all_rows, ask
from tests.unit.broker.wire import Peer, serving

KEY = "5e" * 32
OTHER_KEY = "0f" * 32
BOX = SecretBox(bytes.fromhex(KEY))


def keeper(key: str = KEY) -> SecretKeeper:
    return SecretKeeper(environ={ENV_KEY: key})


def policy(resource: str, actions: str, sources: str = "", effect: str = "allow") -> PolicyRow:
    return PolicyRow(resource=resource, actions=actions, sources=sources, effect=effect)


async def put(peer: Peer, *policies: PolicyRow, **fields: Any) -> UserPutAnswer:  # noqa: ANN401 - of the header
    header = UserPutHeader(**{"user": "shop", "by": "ann@ops", **fields})
    answer: UserPutAnswer = (await ask(peer, NativeCode.USER_PUT, header, policies)).header
    return answer


async def refused(asked: Any) -> EscrowError:  # noqa: ANN401 - any request
    with pytest.raises(EscrowError) as error:
        await asked
    return error.value


def known(server: Server, name: str = "shop") -> KeptUser:
    return server.broker.store.catalog.users[name]


def secrets_of(server: Server, name: str = "shop") -> list[str]:
    kept = known(server, name)
    return [BOX.unseal(one, name).reveal() for one in kept.user.secrets]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_user_is_created_listed_changed_and_removed(tmp_path: Path) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        peer = await Peer.to(server.broker_address)
        made = await put(
            peer,
            policy("topic:order-*", "sub,pub", "10.0.0.0/8"),
            policy("Topic:order-secret", "ALL", effect="Deny"),
            access_key="AK1",
            roles="operator,viewer",
            certificate_names="CN=shop,O=Example\nCN=till",
        )
        assert made.is_changed
        assert secrets_of(server) == [made.secret]
        (row,) = await all_rows(peer, NativeCode.USER_LIST, ListUsersHeader())
        version = known(server).version
        assert row == UserRow(
            user="shop",
            kind="normal",
            is_enabled=True,
            access_key="AK1",
            roles="viewer,operator",
            certificate_names="CN=shop,O=Example\nCN=till",
            policies=row.policies,
            secrets=1,
            user_version=version,
        )
        assert json.loads(row.policies) == [
            ["Topic:order-*", "Pub,Sub", "10.0.0.0/8", "allow"],
            ["Topic:order-secret", "All", "", "deny"],
        ]
        changed = await put(peer, seen=version, kind="super", is_enabled=False)
        assert (changed.is_changed, changed.secret) == (True, "")
        user = known(server).user
        assert (user.kind, user.is_enabled, user.policies) == (UserKind.SUPER, False, ())
        assert secrets_of(server) == [made.secret]
        await ask(peer, NativeCode.USER_REMOVE, UserRemoveHeader(user="shop", by="ann@ops"))
        assert await all_rows(peer, NativeCode.USER_LIST, ListUsersHeader()) == []


async def test_a_secret_is_told_once_and_is_in_no_file_log_or_repr(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    with caplog.at_level(logging.DEBUG):
        async with serving(tmp_path, secrets=keeper()) as server:
            peer = await Peer.to(server.broker_address)
            given = "given-secret-of-till"
            seen.append((await put(peer)).secret)
            seen.append((await put(peer, user="till", secret=given)).secret)
            assert seen[1] == given
            version = known(server).version
            rotated = await put(peer, seen=version, secrets_after="rotate")
            seen.append(rotated.secret)
            listed = await ask(peer, NativeCode.USER_LIST, ListUsersHeader())
            shown = repr(listed) + repr(listed.rows) + repr(rotated) + repr(server.broker.catalog)
            shown += repr(UserPutHeader(user="a", by="b", secret=given))
            shown += repr(known(server)) + repr(server.broker)
    files = contents(tmp_path)
    assert len(files) > 3
    for secret in seen:
        assert len(secret) > 8
        assert secret not in caplog.text
        assert secret not in shown
        for name, data in files.items():
            assert secret.encode() not in data, name
            assert bytes.fromhex(KEY) not in data, name
    assert "user_put" in caplog.text
    assert "ann@ops" in caplog.text


async def test_secrets_change_over_and_old_ones_retire(tmp_path: Path) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        peer = await Peer.to(server.broker_address)
        first = (await put(peer)).secret
        second = (await put(peer, seen=known(server).version, secrets_after="rotate")).secret
        assert secrets_of(server) == [second, first]
        third = (await put(peer, seen=known(server).version, secrets_after="rotate")).secret
        assert secrets_of(server) == [third, second]
        answer = await put(peer, seen=known(server).version, secrets_after="retire")
        assert (answer.is_changed, answer.secret) == (True, "")
        assert secrets_of(server) == [third]
        again = await put(peer, seen=known(server).version, secrets_after="retire")
        assert not again.is_changed


async def test_users_survive_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        secret = (await put(await Peer.to(server.broker_address), roles="admin")).secret
    async with serving(tmp_path, secrets=keeper()) as server:
        assert known(server).user.roles == (Role.ADMIN,)
        assert secrets_of(server) == [secret]


@pytest.mark.parametrize(
    ("fields", "policies", "code"),
    [
        ({"user": "../up"}, [], "bad_user"),
        ({"user": ""}, [], "bad_user"),
        ({"access_key": "a,b"}, [], "bad_user"),
        ({"kind": "root"}, [], "policy_malformed"),
        ({"roles": "root"}, [], "policy_malformed"),
        ({"secret": "short"}, [], "secret_malformed"),
        ({"seen": 7}, [], "user_unknown"),
        ({}, [policy("Topic:a*b", "Pub")], "policy_malformed"),
        ({}, [policy("Topic:a", "Write")], "policy_malformed"),
        ({}, [policy("Topic:a", "Pub", "10.0.0.1/8")], "policy_malformed"),
        ({}, [policy("Topic:a", "Pub", effect="maybe")], "policy_malformed"),
        ({}, [policy(f"Topic:{n}", "Pub") for n in range(POLICIES_MAX + 1)], "policies_limit"),
        ({"user": "x" * 256}, [], "name_too_long"),
    ],
)
async def test_a_user_that_means_nothing_is_refused_and_nothing_changes(
    tmp_path: Path, fields: dict[str, Any], policies: list[PolicyRow], code: str
) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        peer = await Peer.to(server.broker_address)
        error = await refused(put(peer, *policies, **fields))
        assert isinstance(error, RequestRefused)
        assert error.code == code
        assert server.broker.store.catalog.users == {}


async def test_an_error_does_not_show_a_secret(tmp_path: Path) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        peer = await Peer.to(server.broker_address)
        for secret in ("sécret-with-an-accent", "s" * 300, "with space and more"):
            error = await refused(put(peer, secret=secret))
            assert secret not in str(error)
        for word in ("keep", "rotate"):
            error = await refused(put(peer, secret="a good secret"[:1] * 20, user="a b"))
            assert "aaaa" not in str(error), word


async def test_changes_of_what_the_caller_has_not_seen_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        peer = await Peer.to(server.broker_address)
        await put(peer)
        assert (await refused(put(peer))).code == "user_exists"
        version = known(server).version
        both = await asyncio.gather(
            put(peer, seen=version, roles="viewer"),
            put(await Peer.to(server.broker_address), seen=version, roles="admin"),
            return_exceptions=True,
        )
        codes = sorted(one.code if isinstance(one, EscrowError) else "" for one in both)
        assert codes == ["", "user_changed"]
        error = await refused(put(peer, seen=known(server).version, secrets_after="forget"))
        assert error.code == "secrets_after_unknown"
        header = UserRemoveHeader(user="nobody", by="ann")
        assert (await refused(ask(peer, NativeCode.USER_REMOVE, header))).code == "user_unknown"


async def test_without_a_key_users_are_shown_and_disabled_but_not_created(tmp_path: Path) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        await put(await Peer.to(server.broker_address))
    async with serving(tmp_path, secrets=SecretKeeper(environ={})) as server:
        peer = await Peer.to(server.broker_address)
        assert len(await all_rows(peer, NativeCode.USER_LIST, ListUsersHeader())) == 1
        error = await refused(put(peer, user="till"))
        assert error.code == "access_key_missing"
        version = known(server).version
        assert (await put(peer, seen=version, is_enabled=False)).is_changed
        error = await refused(put(peer, seen=known(server).version, secrets_after="rotate"))
        assert error.code == "access_key_missing"


async def test_a_wrong_key_makes_no_user_and_replaces_secrets_by_rotation(tmp_path: Path) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        await put(await Peer.to(server.broker_address))
    async with serving(tmp_path, secrets=keeper(OTHER_KEY)) as server:
        peer = await Peer.to(server.broker_address)
        error = await refused(put(peer, user="till"))
        assert isinstance(error, StoreUnusable)
        assert error.code == "access_key_wrong"
        rotated = await put(peer, seen=known(server).version, secrets_after="rotate")
        # The secret under the lost key is gone: it could not be checked.
        (sealed,) = known(server).user.secrets
        other = SecretBox(bytes.fromhex(OTHER_KEY))
        assert other.unseal(sealed, "shop") == Secret(rotated.secret)
        assert (await put(peer, user="till")).is_changed


async def test_users_are_listed_in_pages_and_one_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        peer = await Peer.to(server.broker_address)
        for name in ("till", "shop", "audit"):
            await put(peer, user=name)
        rows = await all_rows(peer, NativeCode.USER_LIST, ListUsersHeader(limit=1))
        assert [row.user for row in rows] == ["audit", "shop", "till"]
        (one,) = await all_rows(peer, NativeCode.USER_LIST, ListUsersHeader(user="shop"))
        assert one == rows[1]
        assert await all_rows(peer, NativeCode.USER_LIST, ListUsersHeader(user="sho")) == []


async def explained(peer: Peer, action: str, resource: str, address: str = "") -> NativeReply:
    header = AclExplainHeader(user="shop", action=action, resource=resource, address=address)
    return await ask(peer, NativeCode.ACL_EXPLAIN, header)


async def test_a_decision_is_explained_by_every_policy(tmp_path: Path) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        peer = await Peer.to(server.broker_address)
        await put(
            peer,
            policy("Topic:order-*", "Pub", "10.0.0.0/8"),
            policy("Topic:order-secret", "All", effect="deny"),
            roles="viewer",
        )
        told = await explained(peer, "Pub", "Topic:order-eu", "10.1.2.3")
        assert (told.header.is_allowed, told.header.why) == (True, "allowed")
        assert [(one.resource, one.role, one.bearing, one.is_deciding) for one in told.rows] == [
            ("Topic:order-*", "", "matches", True),
            ("Topic:order-secret", "", "other_resource", False),
            ("*", "viewer", "other_action", False),
        ]
        told = await explained(peer, "pub", "Topic:order-eu", "192.168.0.1")
        assert (told.header.is_allowed, told.header.why) == (False, "nothing_allows")
        assert told.rows[0].bearing == "other_source"
        told = await explained(peer, "Get", "Topic:order-secret")
        assert (told.header.why, told.rows[1].is_deciding) == ("denied", True)
        assert "wins" in told.header.advice
        assert (await explained(peer, "List", "Topic:*")).header.is_allowed


@pytest.mark.parametrize(
    ("action", "resource", "address", "code"),
    [
        ("Pub,Sub", "Topic:a", "", "policy_malformed"),
        ("Pub", "Topic:a*", "", "policy_malformed"),
        ("Pub", "Topic:a", "10.0.0.0/8", "policy_malformed"),
    ],
)
async def test_a_question_that_means_nothing_is_refused(
    tmp_path: Path, action: str, resource: str, address: str, code: str
) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        peer = await Peer.to(server.broker_address)
        await put(peer)
        assert (await refused(explained(peer, action, resource, address))).code == code


async def test_a_question_about_an_unknown_user_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await refused(explained(peer, "Pub", "Topic:a"))).code == "user_unknown"


async def test_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, secrets=keeper()) as server:
        peer = await Peer.to(server.broker_address)
        many = [policy("Topic:a", "Pub")] * 1_001
        assert (await refused(put(peer, *many))).code == "too_many_rows"
        header = UserPutHeader(user="a", by="b", version=2)
        error = await refused(ask(peer, NativeCode.USER_PUT, header))
        assert error.code == "schema_version_unknown"
        assert not isinstance(error, ProtocolViolation)


def test_a_mode_of_access_control_is_on_or_off() -> None:
    with pytest.raises(RequestRefused, match="must be off or on"):
        AccessConfig(mode="maybe")  # type: ignore[arg-type]
