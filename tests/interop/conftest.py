"""Brokers and peers for the tests here; each starts when the first test needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.interop import remoting
from tests.interop.certificates import Certificates, make_certificates, tls_settings
from tests.interop.escrow import Escrow, quick_escrow
from tests.interop.harness import Peer, every_peer


@pytest.fixture(scope="session")
def broker() -> Iterator[Escrow]:
    with quick_escrow() as broker:
        yield broker


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_broker(certificates: Certificates) -> Iterator[Escrow]:
    with quick_escrow(tls_settings(certificates)) as broker, remoting.secured(certificates):
        yield broker


@pytest.fixture(scope="session")
def peer_named() -> Iterator[Callable[[str], Peer]]:
    """Return a function that starts each peer once, as one process for all tests."""
    known = {peer.name: peer for peer in every_peer()}
    started: dict[str, Peer] = {}
    with ExitStack() as running:

        def get(name: str) -> Peer:
            if name not in started:
                started[name] = running.enter_context(known[name])
            return started[name]

        yield get
