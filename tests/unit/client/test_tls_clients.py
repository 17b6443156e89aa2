"""Clients of a broker that requires TLS: SDK, native calls, command line, Spark's options."""

from __future__ import annotations

import asyncio
import pickle
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq import AsyncProducer, Consumer, Producer, Received, Tls
from escrowmq.broker.net.certificates import CertificateUse
from escrowmq.broker.server import Server
from escrowmq.cli.main import main
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.tls import SWITCH, VARIABLES, VERIFYING, TlsAddress, tls_of
from escrowmq.pipeline.options import Options
from escrowmq.pipeline.source.queues import TopicSelection, known
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.unit.broker.tls_files import Pki
from tests.unit.broker.wire import serving

WAIT_S = 20


@pytest.fixture(autouse=True)
def no_tls_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES.values(), SWITCH, VERIFYING):
        # First set, so that what a command sets is undone.
        monkeypatch.setenv(name, "")


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(tls=True) as running:
        running.create_topic("orders")
        yield running


def tls_to(broker: InProcessBroker) -> Tls:
    assert broker.tls is not None
    return broker.tls


def test_producer_and_consumer_speak_tls_on_every_route(broker: InProcessBroker) -> None:
    got: queue.Queue[bytes] = queue.Queue()
    with Producer(broker.address, "pay", tls=broker.tls) as producer:
        producer.send("orders", b"one")
        with producer.begin() as tx:
            tx.send("orders", b"two")
        consumer = Consumer(broker.address, "ship", tls=broker.tls)

        @consumer.subscribe("orders")
        def take(message: Received) -> None:
            got.put(message.body)

        with consumer:
            assert {got.get(timeout=WAIT_S), got.get(timeout=WAIT_S)} == {b"one", b"two"}
    assert broker.undecided() == []


async def test_an_async_producer_speaks_tls(broker: InProcessBroker) -> None:
    async with AsyncProducer(broker.address, "pay-async", tls=broker.tls) as producer:
        await producer.send("orders", b"three")


def test_a_client_without_tls_is_told_what_is_missing(broker: InProcessBroker) -> None:
    with pytest.raises(RequestRefused, match="tls_required"), Producer(broker.address, "pay"):
        pass
    plain = NativeCalls(str(broker.broker_address))
    with pytest.raises(RequestRefused, match="tls_required"):
        plain.call(NativeCode.STATUS)
    plain.close()


def test_a_broker_that_is_not_trusted_gets_no_request(
    broker: InProcessBroker, tmp_path: Path
) -> None:
    other = Tls(ca_file=Pki(tmp_path / "pki").ca_file)
    misnamed = Tls(ca_file=tls_to(broker).ca_file, server_name="other.example.org")
    for tls in (other, misnamed, Tls()):
        producer = Producer(broker.address, "pay", tls=tls)
        with pytest.raises(RequestRefused, match="tls_failed"):
            producer.start()
        calls = NativeCalls(broker.broker_address, tls=tls)
        with pytest.raises(RequestRefused, match="tls_failed"):
            calls.call(NativeCode.STATUS)


def test_verification_can_be_turned_off(broker: InProcessBroker) -> None:
    with NativeCalls(str(broker.broker_address), tls=Tls(verify=False)) as calls:
        assert calls.call(NativeCode.STATUS).header.tls == "required"


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for path in (missing, broken):
        with pytest.raises(RequestRefused, match=f"tls_unusable.*{path.name}"):
            NativeCalls("127.0.0.1:1", tls=Tls(ca_file=path)).call(NativeCode.STATUS)
    with pytest.raises(RequestRefused, match="bad_config"):
        Tls(cert_file="a.pem")
    with pytest.raises(RequestRefused, match="bad_config"):
        Producer("127.0.0.1:1", "pay", tls="ca.pem")


async def test_a_broker_without_tls_is_not_mistaken_for_one(tmp_path: Path) -> None:
    async with serving(tmp_path, tls={"mode": "off"}) as server:
        with pytest.raises(Unavailable, match="running with TLS"):
            await asyncio.to_thread(ask, server, Tls(verify=False))
        with pytest.raises(Unavailable, match="running with TLS"):
            async with AsyncProducer(server.name_address, "pay", tls=Tls(verify=False)):
                pass


def ask(server: Server, tls: Tls) -> str:
    with NativeCalls(server.broker_address, tls=tls) as calls:
        return str(calls.call(NativeCode.STATUS).header.tls)


async def test_a_broker_may_ask_for_a_certificate(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    fields = {"mode": "required", **pki.fields(asks_clients=True)}
    shown = Tls(ca_file=pki.ca_file, cert_file=pki.client.cert, key_file=pki.client.key)
    async with serving(tmp_path / "data", tls=fields) as server:
        assert await asyncio.to_thread(ask, server, shown) == "required"
        async with AsyncProducer(server.name_address, "pay", tls=shown) as producer:
            await producer.send("orders", b"1")
        none = Tls(ca_file=pki.ca_file)
        with pytest.raises(RequestRefused, match=r"tls_failed.*client certificate"):
            await asyncio.to_thread(ask, server, none)
        with pytest.raises(RequestRefused, match=r"tls_failed.*client certificate"):
            async with AsyncProducer(server.name_address, "pay", tls=none):
                pass


async def test_a_renewed_client_certificate_is_read_again(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    fields = {"mode": "required", **pki.fields(asks_clients=True)}
    shown = Tls(ca_file=pki.ca_file, cert_file=pki.client.cert, key_file=pki.client.key)
    async with serving(tmp_path / "data", tls=fields) as server:
        async with AsyncProducer(server.name_address, "pay", tls=shown):
            assert {one.certificate_names[0] for one in server._connections} == {"CN:orders"}
        pki.client.write(pki.made(CertificateUse.CLIENT, "renewed"))
        async with AsyncProducer(server.name_address, "pay", tls=shown):
            assert "CN:renewed" in {one.certificate_names[0] for one in server._connections}


# The environment, and Spark's options.


def test_the_environment_turns_tls_on(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES["ca_file"], str(tls_to(broker).ca_file))
    with NativeCalls(str(broker.broker_address)) as calls:
        assert calls.call(NativeCode.STATUS).header.tls == "required"
    with Producer(broker.address, "pay") as producer:
        producer.send("orders", b"1")


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({SWITCH: "on"}, Tls()),
        ({SWITCH: "off", VARIABLES["ca_file"]: "a"}, None),
        ({VERIFYING: "off"}, Tls(verify=False)),
        ({VARIABLES["server_name"]: "b"}, Tls(server_name="b")),
    ],
)
def test_each_variable_has_its_meaning(environ: dict[str, str], found: Tls | None) -> None:
    assert tls_of(environ) == found


def test_a_switch_is_on_or_off() -> None:
    with pytest.raises(RequestRefused, match="on or off"):
        tls_of({SWITCH: "yes"})


def test_options_of_spark_travel_with_the_addresses(broker: InProcessBroker) -> None:
    given = {"broker": str(broker.broker_address), "tlsCa": str(tls_to(broker).ca_file)}
    (address,) = Options(given, ("broker",)).brokers()
    copied = pickle.loads(pickle.dumps(address))
    assert isinstance(copied, TlsAddress)
    assert copied.tls == Tls(ca_file=tls_to(broker).ca_file)
    found = known([copied], TopicSelection(("orders",), ""), 0.0)
    assert [pickle.loads(pickle.dumps(one)).tls for one in found.addresses.values()] == [copied.tls]


def test_spark_options_are_checked() -> None:
    (plain,) = Options({"broker": "a:1"}, ("broker",)).brokers()
    assert type(plain) is str
    with pytest.raises(RequestRefused, match="tlsKey"):
        Options({"broker": "a:1", "tlsCert": "c"}, ("broker",)).brokers()


# The command line.


def test_commands_take_the_options(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    ca = str(tls_to(broker).ca_file)
    for words in (["topic", "list"], ["status"], ["txn", "list"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, "-b", str(broker.broker_address), "--tls-ca", ca])
        assert ended.value.code == 0
    assert "required, the certificate expires in" in capsys.readouterr().out


def test_a_command_without_tls_says_what_is_missing(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", "-b", str(broker.broker_address)])
    assert ended.value.code == 2
    assert "tls_required" in capsys.readouterr().err
