"""Check the harness: run every scenario with every peer against a real Apache broker.

    python -m tests.interop.selfcheck [--peer java-5.5.0] [--only commit] [--halves-in-rocksdb]

A failure is an error in a scenario, in a peer or in our understanding of the protocol, since our
broker takes no part.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Mapping

from tests.interop.harness import (
    JAVA_5,
    ApacheRocketMQ,
    Broker,
    Peer,
    Scenario,
    every_peer,
    scenarios_for,
)
from tests.interop.scenario import CHECK_AFTER_MS, CHECK_INTERVAL_MS, CHECKS_MAX, DELAY_LEVELS

#: Scenarios that a stock client and a stock broker fail together, each with the reason.
APACHE_FAILS = {
    ("java-4.9.8", "mqadmin_lists_the_cluster"): (
        "5.5 says getTransferredTps where mqadmin 4.9 reads getTransferedTps"
    ),
    ("cpp-wheel", "a_message_refused_too_often_goes_to_the_dead_letters"): (
        "5.5 counts dead letters by origin topic, and fails on this client, which does not send it"
    ),
}


#: RocketMQ 5.4 and later can keep undecided half messages in RocksDB. As long as the second setting
#: has its default, the broker still writes them to its half topic.
HALVES_IN_ROCKSDB = {
    "transRocksDBEnable": "true",
    "transWriteOriginTransHalfEnable": "false",
}

#: Scenarios that every stock client fails if half messages are in RocksDB, each with the reason.
ROCKSDB_FAILS = {
    "a_transaction_that_nobody_knows_is_parked_until_resumed": (
        "after the last check the broker deletes the record, and keeps no copy in the discard topic"
    ),
}


def quick_apache(
    *,
    advertised_host: str = "127.0.0.1",
    version: str = JAVA_5,
    settings: Mapping[str, str] | None = None,
) -> ApacheRocketMQ:
    """Return a broker with short check times and delays."""
    return ApacheRocketMQ(
        version,
        check_after_ms=CHECK_AFTER_MS,
        check_interval_ms=CHECK_INTERVAL_MS,
        checks_max=CHECKS_MAX,
        delay_levels=DELAY_LEVELS,
        advertised_host=advertised_host,
        # It records decisions after this interval, and until then asks about decided transactions.
        settings={"transactionOpBatchInterval": "100", **(settings or {})},
    )


def passes(scenario: Scenario, broker: Broker, peer: Peer, *, in_rocksdb: bool) -> bool:
    started = time.monotonic()
    try:
        scenario.play(broker, peer)
    except Exception:  # noqa: BLE001 - run the other scenarios, too
        is_known = (peer.name, scenario.name) in APACHE_FAILS
        if is_known or (in_rocksdb and scenario.name in ROCKSDB_FAILS):
            outcome = "known"
        else:
            traceback.print_exc()
            outcome = "FAILED"
    else:
        outcome = "ok"
    took_s = time.monotonic() - started
    print(f"{outcome:6} {took_s:6.1f} s  {peer.name:10}  {scenario.name}", flush=True)  # noqa: T201
    return outcome != "FAILED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default="", help="only peers whose name starts like this")
    parser.add_argument("--only", default="", help="only scenarios with this in their name")
    parser.add_argument("--version", default=JAVA_5, help="of the broker")
    parser.add_argument("--halves-in-rocksdb", action="store_true")
    arguments = parser.parse_args()
    failed = 0
    in_rocksdb: bool = arguments.halves_in_rocksdb
    settings = HALVES_IN_ROCKSDB if in_rocksdb else {}
    with quick_apache(version=arguments.version, settings=settings) as broker:
        for peer in every_peer():
            chosen = [one for one in scenarios_for(peer) if arguments.only in one.name]
            if not peer.name.startswith(arguments.peer) or not chosen:
                continue
            with peer:
                failed += sum(
                    not passes(one, broker, peer, in_rocksdb=in_rocksdb) for one in chosen
                )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
