"""Measure how long after a crash of its broker each official 5.x client is asked again.

    python -m tests.interop.grpc_clients.restart [--apache] [--limit-s 700]

Each client leaves one transaction of a topic of its own undecided, and answers every back-check
with "unknown". The broker is killed and started again at once. It takes ten minutes, because some
clients open their telemetry stream that late.
"""

from __future__ import annotations

import argparse
import threading
import time
from contextlib import ExitStack

from tests.interop.apache import ApacheWithProxy
from tests.interop.errors import PeerRefused
from tests.interop.escrow import Escrow
from tests.interop.grpc_clients.clients import Draft, GrpcProducer
from tests.interop.grpc_clients.peers import GrpcPeer, every_grpc_peer
from tests.interop.scenario import eventually, fresh
from tests.interop.values import Answer

CHECK_AFTER_MS = 1_000
CHECK_INTERVAL_MS = 3_000
#: More checks than fit into the time of the measurement.
CHECKS_MAX = 255
LIMIT_S = 700.0
POLL_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apache", action="store_true")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    given = parser.parse_args()
    checks = (CHECK_AFTER_MS, CHECK_INTERVAL_MS, CHECKS_MAX)
    broker: Escrow | ApacheWithProxy = apache(*checks) if given.apache else ours(*checks)
    with broker, ExitStack() as running:
        producers = {}
        for peer in every_grpc_peer():
            running.enter_context(peer)
            producers[peer.name] = asked_once(broker, peer)
        broker.kill()
        broker.start_again()
        tell(producers, given.limit_s)


def apache(after_ms: int, interval_ms: int, checks_max: int) -> ApacheWithProxy:
    return ApacheWithProxy(
        sync_flush=True,
        check_after_ms=after_ms,
        check_interval_ms=interval_ms,
        checks_max=checks_max,
    )


def ours(after_ms: int, interval_ms: int, checks_max: int) -> Escrow:
    return Escrow(
        settings={
            "transaction.check_after_ms": str(after_ms),
            "transaction.check_interval_ms": str(interval_ms),
            "transaction.checks_max": str(checks_max),
        }
    )


def asked_once(broker: Escrow | ApacheWithProxy, peer: GrpcPeer) -> GrpcProducer:
    """Leave a transaction undecided, and wait for its first back-check."""
    topic = fresh("restart")
    broker.create_topic(topic, 1, "TRANSACTION")
    address = broker.grpc_address if isinstance(broker, Escrow) else broker.grpc_endpoint
    started: list[GrpcProducer] = []

    def has_started() -> bool:
        # Apache's proxy may not have heard of the topic yet.
        try:
            started.append(peer.start_grpc_producer(address, topic))
        except PeerRefused:
            return False
        return True

    eventually(has_started, f"start of {peer.name}")
    (producer,) = started
    draft = Draft(topic=topic, key=peer.name)
    producer.send_in_transaction(draft, "leave", checks=[Answer.UNKNOWN])
    producer.wait_for_check(peer.name)
    return producer


def tell(producers: dict[str, GrpcProducer], limit_s: float) -> None:
    """Print for each client when its next back-check came."""
    began = time.monotonic()
    before = {name: producer.checks(name) for name, producer in producers.items()}
    waiting = dict(producers)
    while waiting and time.monotonic() - began < limit_s:
        for name in [one for one in waiting if waiting[one].checks(one) > before[one]]:
            print(f"{name}: asked again after {time.monotonic() - began:.1f} s", flush=True)  # noqa: T201 - its purpose
            del waiting[name]
        threading.Event().wait(POLL_S)
    for name in waiting:
        print(f"{name}: not asked again within {limit_s} s")  # noqa: T201 - its purpose


if __name__ == "__main__":
    main()
