"""Where the examples find their broker: at NAMESRV_ADDR, or in their own process."""

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
    """A broker's name server."""

    address: str
    broker: InProcessBroker | None = None

    def settle_by(self, ledger: SqlLedger) -> None:
        """Have undecided transactions looked up there, as the pipeline's settings would."""
        if self.broker is not None:
            self.broker.ledgers.append(ledger)

    def let_time_pass(self) -> None:
        """Long enough for undecided transactions to be settled, and for retries."""
        if self.broker is not None:
            self.broker.advance(seconds=90)
            self.broker.run_checks()
        time.sleep(0.1)


@contextmanager
def name_server() -> Iterator[Place]:
    """Give the broker that the environment names, or one that lasts as long as the block."""
    address = os.environ.get("NAMESRV_ADDR")
    if address:
        yield Place(address)
        return
    with InProcessBroker() as broker:
        yield Place(broker.address, broker)
