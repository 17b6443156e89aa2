"""Conducts a run: starts the services, kills by schedule, and waits until all is settled.

The conductor kills a process when a given number of orders is paid, so both runs get the same kills
whatever their speed. The order service gets the orders at which it kills itself when it starts.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from escrowmq.demo import downstream, order_service
from escrowmq.demo.figures import DemoRun, ProgressSample
from escrowmq.demo.order_service import TRANSACTIONAL, death_mark
from escrowmq.demo.processes import DemoBroker, demo_failed
from escrowmq.demo.schedule import Kill, Moment, PlannedKill, Victim, from_outside, self_kills
from escrowmq.demo.shop import DOWNSTREAM, Shop, ShopCounts
from escrowmq.demo.step_times import read_times
from escrowmq.model.errors import EscrowError
from escrowmq.pipeline.audit.pins import take_pins

LOOK_S = 0.01
SAMPLE_S = 0.25
#: How long a run may take to pay all orders, and then to become quiet.
PAY_S_MAX = 600.0
QUIET_S_MAX = 120.0
THREADS = 8
MAX_DURATION_S = 5.0
"""How long the SDK lets a transaction take; only after that may a missing ledger row be fenced."""

Tell = Callable[[DemoRun, int, dict[str, int]], None]


@dataclass(kw_only=True)
class Conductor:
    """Conducts one run on a running broker."""

    place: DemoBroker
    mode: str
    folder: Path
    topic: str
    orders: int
    faults: Sequence[PlannedKill]
    #: Called repeatedly with the run, the orders paid, and the messages consumed by service.
    tell: Tell
    run: DemoRun = field(init=False)
    _from_s: float = 0.0
    _native_hand: dict[int, PlannedKill] = field(default_factory=dict)
    _sampled_s: float = 0.0

    def conduct(self) -> DemoRun:
        """Run from the first order until nothing changes any more; return the figures."""
        self.run = DemoRun(name=self.mode, orders=self.orders)
        shop = Shop(self.folder)
        # A customer who orders anew takes a number above the others.
        shop.make(self.orders + len(self_kills(self.faults, Moment.BEFORE_COMMIT)))
        self._native_hand = {
            fault.at_order: fault for fault in self.faults if fault.moment is not Moment.RANDOM
        }
        with closing(ShopCounts(shop)) as counts:
            services = [self._start_downstream(name) for name in DOWNSTREAM]
            self._from_s = time.monotonic()
            self._pay(counts)
            self.run.took_s = time.monotonic() - self._from_s
            self.run.steps = read_times(self.folder)
            self._await_quiet(counts)
            self.place.processes.stop(*services)
            self.run.wrong_effects = shop.wrong_effects()
        return self.run

    def _start_downstream(self, name: str) -> subprocess.Popen[str]:
        task = downstream.DownstreamTask(
            name=name,
            name_server=self.place.broker.name_server,
            folder=str(self.folder),
            topic=self.topic,
        )
        return self.place.processes.start_with(f"{self.mode}-{name}", task)

    def _start_service(self) -> subprocess.Popen[str]:
        task = order_service.OrderServiceTask(
            mode=self.mode,
            name_server=self.place.broker.name_server,
            folder=str(self.folder),
            topic=self.topic,
            orders=self.orders,
            threads=THREADS,
            max_duration_s=MAX_DURATION_S,
            die_before_commit=sorted(self_kills(self.faults, Moment.BEFORE_COMMIT)),
            die_after_commit=sorted(self_kills(self.faults, Moment.AFTER_COMMIT)),
        )
        return self.place.processes.start_with(self._service_name, task)

    @property
    def _service_name(self) -> str:
        return f"{self.mode}-orders"

    # Paying.

    def _pay(self, counts: ShopCounts) -> None:
        """Pay all orders, starting a new order service whenever one was killed."""
        waiting = from_outside(self.faults)
        until = self._from_s + PAY_S_MAX
        while True:
            service = self._start_service()
            waiting = self._watch(service, counts, waiting, until)
            self.place.processes.stop(service)
            if service.returncode == 0:
                return
            if service.returncode != -signal.SIGKILL:
                raise demo_failed(
                    "the order service failed", self.place.processes.log(self._service_name)
                )
            self._note_self_kills()

    def _watch(
        self,
        service: subprocess.Popen[str],
        counts: ShopCounts,
        waiting: list[PlannedKill],
        until: float,
    ) -> list[PlannedKill]:
        """Watch until the service ends, and carry out faults that are due; return the others."""
        before, started_s = counts.paid(), time.monotonic()
        is_started = False
        while service.poll() is None:
            if time.monotonic() > until:
                raise demo_failed(
                    f"not all orders were paid in {PAY_S_MAX:.0f} s", self.place.broker.log
                )
            paid = self._look(counts)
            if paid > before and not is_started:
                is_started = True
                self.run.service_starts_s += time.monotonic() - started_s
            # Kill the service only after it has paid an order, so that it is at work.
            if waiting and paid > before and paid >= waiting[0].at_order:
                self._kill(waiting[0], service)
                waiting = waiting[1:]
            time.sleep(LOOK_S)
        self._look(counts)
        return waiting

    def _kill(self, fault: PlannedKill, service: subprocess.Popen[str]) -> None:
        time.sleep(fault.delay_ms / 1_000)
        if fault.victim is Victim.BROKER:
            self.place.broker.kill()
            killed_s = time.monotonic()
            self._note(fault)
            self.place.broker.restart()
            self.run.broker_away_s += time.monotonic() - killed_s
        elif service.poll() is None:
            service.kill()
            self._note(fault)

    def _note_self_kills(self) -> None:
        for order, fault in list(self._native_hand.items()):
            if death_mark(self.folder, order).exists():
                del self._native_hand[order]
                self._note(fault)

    def _note(self, fault: PlannedKill) -> None:
        at_s = time.monotonic() - self._from_s
        self.run.kills.append(Kill(at_s=at_s, victim=fault.victim, moment=fault.moment))

    def _look(self, counts: ShopCounts) -> int:
        paid = counts.paid()
        at_s = time.monotonic() - self._from_s
        if at_s - self._sampled_s >= SAMPLE_S or not self.run.samples:
            self._sampled_s = at_s
            consumed = counts.consumed()
            self.run.samples.append(
                ProgressSample(at_s=at_s, paid=paid, acted=min(consumed.values()))
            )
            self.tell(self.run, paid, consumed)
        self.run.paid = paid
        return paid

    # Waiting.

    def _await_quiet(self, counts: ShopCounts) -> None:
        """Wait until no transaction is undecided and every message is consumed."""
        since = time.monotonic()
        is_settled = False
        while time.monotonic() < since + QUIET_S_MAX:
            undecided, messages = self._broker_facts()
            if not undecided and not is_settled:
                is_settled = True
                self.run.settled_after_s = time.monotonic() - since
            self.run.messages = messages
            self._look(counts)
            if not undecided and all(one >= messages for one in counts.consumed().values()):
                self.run.is_through = True
                break
            time.sleep(SAMPLE_S)
        self._sampled_s = float("-inf")
        self._look(counts)

    def _broker_facts(self) -> tuple[int, int]:
        """Return the number of undecided transactions, and of visible messages in the topic."""
        try:
            pin = take_pins([self.place.broker.address])[0]
        except EscrowError:
            return -1, -1
        messages = sum(queue.end for queue in pin.queues if queue.topic == self.topic)
        if self.mode != TRANSACTIONAL:
            return 0, messages
        return pin.status.undecided + pin.status.parked, messages
