"""Official 5.x clients that verify the broker's certificate, which a CA of ours has signed.

Java and Go clients accept any certificate, so all other tests of them use TLS with the certificate
that the broker makes for itself.
"""

from __future__ import annotations

import pytest

from tests.interop import remoting
from tests.interop.certificates import Certificates, tls_settings
from tests.interop.errors import PeerRefused
from tests.interop.escrow import Escrow
from tests.interop.grpc_clients import scenarios
from tests.interop.grpc_clients.clients import Draft
from tests.interop.grpc_clients.peers import (
    Go5Peer,
    GrpcPeer,
    Java5Peer,
    Node5Peer,
    Python5Peer,
)
from tests.interop.grpc_clients.scenarios import Play, topic_of
from tests.interop.remoting import create_topic
from tests.interop.scenario import fresh

pytestmark = pytest.mark.xdist_group("grpc-tls")

VERIFYING = (Python5Peer, Node5Peer)
#: Unary calls, transactions, back-checks on the telemetry stream, and pushes.
PLAYS: tuple[Play, ...] = (
    scenarios.a_message_arrives_as_it_was_sent,
    scenarios.a_commit_shows_a_message_and_a_rollback_does_not,
    scenarios.an_undecided_message_is_asked_about_until_it_is_decided,
    scenarios.a_refused_message_is_pushed_again,
)


@pytest.mark.parametrize("peer_type", VERIFYING)
def test_a_client_that_trusts_our_ca_is_served(
    tls_broker: Escrow, certificates: Certificates, peer_type: type[GrpcPeer]
) -> None:
    with peer_type(with_tls=True, ca_file=certificates.ca_file) as peer:
        for play in PLAYS:
            play(tls_broker, peer)


@pytest.mark.parametrize("peer_type", VERIFYING)
def test_a_client_that_does_not_trust_our_ca_sends_nothing(
    tls_broker: Escrow, peer_type: type[GrpcPeer]
) -> None:
    topic = topic_of(tls_broker, "NORMAL")
    with peer_type(with_tls=True) as peer, pytest.raises(PeerRefused):
        send_one(tls_broker, peer, topic)


def test_a_client_without_tls_is_refused_where_it_is_required(tls_broker: Escrow) -> None:
    topic = topic_of(tls_broker, "NORMAL")
    with Python5Peer() as peer, pytest.raises(PeerRefused):
        send_one(tls_broker, peer, topic)


@pytest.mark.parametrize("peer_type", [Python5Peer, Java5Peer, Node5Peer, Go5Peer])
def test_no_official_client_presents_a_certificate(
    certificates: Certificates, peer_type: type[GrpcPeer]
) -> None:
    settings = {**tls_settings(certificates), "tls.ca_file": str(certificates.ca_file)}
    with (
        Escrow(settings=settings) as broker,
        remoting.secured(certificates),
        peer_type(with_tls=True, ca_file=certificates.ca_file) as peer,
    ):
        topic = fresh("closed")
        create_topic(broker.name_server, topic, 1)
        with pytest.raises(PeerRefused):
            send_one(broker, peer, topic)


def send_one(broker: Escrow, peer: GrpcPeer, topic: str) -> None:
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    producer.send(Draft(topic=topic, key="one"))
