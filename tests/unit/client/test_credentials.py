"""Credentials of programs, tools and Spark's processes, against a broker with access control."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import msgspec
import pytest

from escrowmq import AsyncProducer, Credentials, ProducerConfig
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.credentials import ENV_ACCESS_KEY, ENV_FILE, ENV_SECRET
from escrowmq.model.errors import RequestRefused
from escrowmq.model.users import Role
from escrowmq.protocol.native.requests import NativeCode
from tests.unit.broker.access_world import SECRET, allow, guarded, put_user
from tests.unit.broker.wire import make_topic

SHOP = Credentials("shop", SECRET)


def file_with(path: Path, secret: str = SECRET, mode: int = 0o600) -> Path:
    """A credentials file."""
    path.write_bytes(msgspec.json.encode({"access_key": "shop", "secret": secret}))
    path.chmod(mode)
    return path


async def test_a_producer_with_credentials_commits_transactions(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await make_topic(server, "orders", 2)
        await put_user(server, "shop", allow("Pub Topic:orders"))
        config = ProducerConfig(credentials=SHOP)
        async with AsyncProducer(server.name_address, "pay", config=config) as producer:
            await producer.send("orders", b"1")
            async with producer.begin() as transaction:
                await transaction.send("orders", b"2")
        core = server.broker.store.core
        stored = core.half(0)
        assert stored is not None
        assert core.table.decided_by(stored)[0] == "shop"
        assert core.names.origins[stored.origin].user == "shop"


async def test_a_producer_without_credentials_is_told_so(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", allow("Pub Topic:orders"))
        with pytest.raises(RequestRefused, match="not_authenticated"):
            async with AsyncProducer(server.name_address, "pay") as producer:
                await producer.send("orders", b"1")


async def test_tools_take_credentials_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do the tasks of Spark, whose options would show them."""
    async with guarded(tmp_path) as server:
        await put_user(server, "shop", roles=[Role.VIEWER])

        def topics() -> int:
            with NativeCalls(server.broker_address) as calls:
                return len(list(calls.rows(NativeCode.LIST_TOPICS)))

        with pytest.raises(RequestRefused, match="not_authenticated"):
            await asyncio.to_thread(topics)
        monkeypatch.setenv(ENV_ACCESS_KEY, "shop")
        monkeypatch.setenv(ENV_SECRET, SECRET)
        assert await asyncio.to_thread(topics)
        monkeypatch.delenv(ENV_ACCESS_KEY)
        monkeypatch.delenv(ENV_SECRET)
        monkeypatch.setenv(ENV_FILE, str(file_with(tmp_path / "credentials")))
        assert await asyncio.to_thread(topics)


async def test_a_new_secret_in_the_file_counts_for_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(tmp_path) as server:
        monkeypatch.setenv(ENV_FILE, str(file_with(tmp_path / "credentials")))
        await put_user(server, "shop")
        with NativeCalls(server.broker_address) as calls:
            await asyncio.to_thread(calls.call, NativeCode.STATUS)
            await put_user(server, "shop", secrets=["another-secret"])
            file_with(tmp_path / "credentials", "another-secret")
            calls.close()
            await asyncio.to_thread(calls.call, NativeCode.STATUS)


def test_a_file_that_others_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="credentials_unsafe"):
        Credentials.from_file(file_with(tmp_path / "open", mode=0o640))


def test_a_file_with_something_else_is_refused_and_not_shown(tmp_path: Path) -> None:
    path = file_with(tmp_path / "credentials")
    path.write_bytes(b'{"secret": "correct-horse-battery"}')
    with pytest.raises(RequestRefused, match="credentials_unreadable") as error:
        Credentials.from_file(path)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("name", [ENV_ACCESS_KEY, ENV_SECRET])
def test_one_variable_alone_is_refused(name: str) -> None:
    with pytest.raises(RequestRefused, match="credentials_incomplete"):
        Credentials.from_environment({name: "x"})


def test_a_secret_is_neither_shown_nor_pickled() -> None:
    assert repr(SHOP) == "Credentials(access_key='shop')"
    assert SECRET not in repr(ProducerConfig(credentials=SHOP))
    with pytest.raises(TypeError):
        pickle.dumps(SHOP)
    with pytest.raises(RequestRefused, match="credentials"):
        ProducerConfig(credentials=("shop", SECRET))  # type: ignore[arg-type]
