"""Stock remoting clients with TLS, ``-Dtls.enable=true``, on a broker that requires it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.interop import remoting
from tests.interop.building import JAVA_4, JAVA_5
from tests.interop.certificates import Certificates, tls_settings
from tests.interop.errors import PeerRefused
from tests.interop.escrow import Escrow, quick_escrow
from tests.interop.scenario import fresh
from tests.interop.scenarios import transactions
from tests.interop.stock import JavaPeer
from tests.interop.values import Message

pytestmark = pytest.mark.xdist_group("remoting-tls")

VERSIONS = (JAVA_4, JAVA_5)
#: A switch of the process: every client in it uses TLS, and accepts any certificate.
ANY_CERTIFICATE = {"tls.enable": "true"}
PLAYS = (
    transactions.a_committed_transaction_is_delivered_as_it_was_sent,
    transactions.a_rolled_back_transaction_is_not_delivered,
    transactions.nothing_is_delivered_while_the_local_transaction_runs,
)


def verifying(certificates: Certificates, *, with_certificate: bool = False) -> Mapping[str, str]:
    """Return the options of a client that verifies the broker, and may show a certificate."""
    shown = {
        "tls.client.certPath": str(certificates.client_file),
        "tls.client.keyPath": str(certificates.client_key_file),
    }
    return {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(certificates.ca_file),
        **(shown if with_certificate else {}),
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_transactions_go_through_tls(tls_broker: Escrow, version: str) -> None:
    with JavaPeer(version, options=ANY_CERTIFICATE) as peer:
        for play in PLAYS:
            play(tls_broker, peer)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_that_verifies_the_broker_is_served(
    tls_broker: Escrow, certificates: Certificates, version: str
) -> None:
    with JavaPeer(version, options=verifying(certificates)) as peer:
        PLAYS[0](tls_broker, peer)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_without_tls_is_refused(tls_broker: Escrow, version: str) -> None:
    topic = fresh("plain")
    tls_broker.create_topic(topic)
    with JavaPeer(version) as peer, pytest.raises(PeerRefused, match="No route"):
        # The client writes why (tls_required) into its log only.
        send_one(tls_broker, peer, topic)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_that_shows_no_certificate_is_refused_where_one_is_asked_for(
    certificates: Certificates, version: str
) -> None:
    settings = {**tls_settings(certificates), "tls.ca_file": str(certificates.ca_file)}
    with Escrow(settings=settings) as broker, remoting.secured(certificates):
        topic = fresh("mutual")
        broker.create_topic(topic)
        with JavaPeer(version, options=verifying(certificates, with_certificate=True)) as peer:
            send_one(broker, peer, topic)
        with JavaPeer(version, options=ANY_CERTIFICATE) as peer, pytest.raises(PeerRefused):
            send_one(broker, peer, topic)


@pytest.mark.parametrize("options", [{}, ANY_CERTIFICATE], ids=["plain", "tls"])
def test_a_broker_without_settings_serves_both(options: Mapping[str, str]) -> None:
    with quick_escrow() as broker, remoting.secured(None), JavaPeer(options=options) as peer:
        PLAYS[0](broker, peer)


def send_one(broker: Escrow, peer: JavaPeer, topic: str) -> None:
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    producer.send(Message(topic=topic, keys="one"))
