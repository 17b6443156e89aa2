"""The examples' broker: the one at NAMESRV_ADDR, or one in their own process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from escrowmq import SqlLedger
from escrowmq.testing import InProcessBroker


@dataclass
class Place:
    """The address of a name server, and its broker if that runs in this process."""

    address: str
    broker: InProcessBroker | None = None

    def settle_by(self, ledger: SqlLedger) -> None:
        """Let the broker look up undecided transactions there, as its settings would."""
        if self.broker is not None:
            self.broker.ledgers.append(ledger)

    def let_time_pass(self) -> None:
        """Let enough time pass to settle undecided transactions and to retry messages."""
        if self.broker is not None:
            self.broker.advance(seconds=90)
            self.broker.run_checks()
        time.sleep(0.1)


@contextmanager
def name_server() -> Iterator[Place]:
    """Yield the broker that the environment names, or one that lasts as long as the block."""
    address = os.environ.get("NAMESRV_ADDR")
    if address:
        yield Place(address)
        return
    with InProcessBroker() as broker:
        yield Place(broker.address, broker)
