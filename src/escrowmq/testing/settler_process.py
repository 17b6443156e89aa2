"""The settler as a separate process next to a broker: back-checks without the pipeline.

    python -m escrowmq.testing.settler_process --broker 127.0.0.1:10911 --interval-ms 200

Each round reads the undecided transactions, applies the time rules with the broker's policy, and
sends the verdicts to the broker. The process prints ``ready`` after the first successful round, and
SIGTERM ends it. While the broker is unreachable, rounds fail, and the next round tries again.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import msgspec

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import EscrowError
from escrowmq.model.lineage import Sight
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.native.headers import ByHeader, ListTransactionsHeader
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.native.rows import VerdictRow
from escrowmq.protocol.native.sights import sight_of
from escrowmq.testing.settler import CheckableTransaction, LookUp, Round, Settler
from escrowmq.transaction.commands import Verdict
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State

_VERDICTS_MAX = NATIVE_REQUESTS[NativeCode.OBEY_VERDICTS].rows_max


class BrokerPort:
    """Settle port of a broker."""

    def __init__(self, calls: NativeCalls) -> None:
        self._calls = calls
        #: The broker's history when its policy was read.
        self.sight: Sight | None = None

    def policy(self) -> CheckPolicy:
        """Return the broker's check policy, and remember its history."""
        told = self._calls.call(NativeCode.STATUS).header
        self.sight = sight_of(told)
        return CheckPolicy.told_by(told)

    def undecided(self) -> Sequence[CheckableTransaction]:
        """Return all transactions that may be checked."""
        wanted = ListTransactionsHeader(states=State.PREPARED.label, with_ids=True)
        return [
            # Besides the group, the fields have the names of the row's columns.
            msgspec.convert(
                msgspec.structs.asdict(row) | {"group": row.producer_group}, CheckableTransaction
            )
            for row in self._calls.rows(NativeCode.LIST_TRANSACTIONS, wanted)
        ]

    def obey(self, verdicts: Sequence[Verdict]) -> Sequence[VerdictOutcome]:
        """Send verdicts; an empty list still tells the broker that a settler is running."""
        outcomes: list[VerdictOutcome] = []
        for at in range(0, max(len(verdicts), 1), _VERDICTS_MAX):
            rows = [
                VerdictRow(
                    half_offset=verdict.half_offset,
                    verdict=verdict.kind.value,
                    state=int(verdict.state),
                    checks_sent=verdict.checks_sent,
                    reason=verdict.reason or None,
                )
                for verdict in verdicts[at : at + _VERDICTS_MAX]
            ]
            answer = self._calls.call(NativeCode.OBEY_VERDICTS, self._header(), rows)
            outcomes += [VerdictOutcome(row.outcome) for row in answer.rows]
        return outcomes

    def _header(self) -> ByHeader:
        if self.sight is None:
            return ByHeader()
        return ByHeader(epoch=self.sight.lineage.epoch, log_end=self.sight.log_end)


def settle_once(port: BrokerPort, look_up: LookUp | None = None) -> Round:
    """Run one round over all undecided transactions."""
    return Settler(port, port.policy(), look_up).run_once()


def run(address: str, interval_s: float, stopping: threading.Event) -> None:
    """Run rounds until ``stopping`` is set."""
    is_ready = False
    with NativeCalls(address) as calls:
        port = BrokerPort(calls)
        while not stopping.is_set():
            try:
                settle_once(port)
            except EscrowError as error:
                sys.stderr.write(f"round failed: {error}\n")
            else:
                if not is_ready:
                    sys.stdout.write("ready\n")
                    sys.stdout.flush()
                is_ready = True
            stopping.wait(interval_s)


def main() -> None:
    """Parse the arguments, and run rounds until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description="Settle a broker's undecided transactions.")
    parser.add_argument("--broker", required=True, metavar="HOST:PORT")
    parser.add_argument("--interval-ms", type=int, default=1_000, metavar="N")
    given = parser.parse_args()
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    run(given.broker, given.interval_ms / 1_000, stopping)


if __name__ == "__main__":
    main()
