"""A broker inside a test: real sockets, a store in a temporary folder, and a manual clock.

with InProcessBroker() as broker:
    producer = Producer(broker.address, group="orders")
    ...
    broker.advance(seconds=60)
    broker.run_checks()

Time passes only when the test advances it, and all work that came due is done when the call
returns. The broker has its own thread, so a test may block, with or without an event loop.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import msgspec

from escrowmq.broker.config import OFF, BrokerConfig, TlsConfig, TopicsConfig, WriterConfig
from escrowmq.broker.net import tls as broker_tls
from escrowmq.client.ledger.checks import Question
from escrowmq.client.messages.body_reading import reader_of
from escrowmq.client.messages.codecs import JSON, Codec
from escrowmq.client.network.background import BackgroundLoop
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.catalog import Topic
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.ledger_outcome import MAYBE_SWEPT, LedgerOutcome
from escrowmq.model.resolution import Resolution
from escrowmq.model.tls import Tls, TlsAddress
from escrowmq.model.topic_names import DLQ_PREFIX
from escrowmq.store.config import StoreConfig
from escrowmq.testing.calls import accepted
from escrowmq.testing.clock import ManualClock
from escrowmq.testing.settler import CheckableTransaction, Round, Settler
from escrowmq.testing.settler_process import BrokerPort
from escrowmq.testing.watched_server import WatchedServer
from escrowmq.transaction.policy import CheckPolicy

if TYPE_CHECKING:
    from escrowmq.client.ledger.table import SqlLedger
    from escrowmq.client.messages.messages import Received

START_S_MAX = 30.0
T = TypeVar("T")
ArgumentT = TypeVar("ArgumentT")
_RESOLUTIONS = {
    LedgerOutcome.COMMITTED: Resolution.COMMIT,
    LedgerOutcome.ROLLED_BACK: Resolution.ROLLBACK,
    LedgerOutcome.UNKNOWN: Resolution.UNKNOWN,
}


FREE_BYTES_MIN = 1024 * 1024
"""Minimum free disk space. The reserve file takes an eighth of it."""


class InProcessBroker:
    """A broker for tests. Use it in a ``with`` block.

    ``data`` is a folder that is kept. ``run_checks`` reads ``ledgers`` like the pipeline. It asks
    the producers about transactions with another ledger or none. ``policy``, ``store``,
    ``queue_count``, ``auto_create`` and ``name`` are the operator's settings. With ``tls``, clients
    must use TLS: ``Producer(broker.address, "orders", tls=broker.tls)``.
    """

    def __init__(
        self,
        *,
        clock: ManualClock | None = None,
        data: Path | str | None = None,
        ledgers: Iterable[SqlLedger] = (),
        policy: CheckPolicy | None = None,
        store: StoreConfig | None = None,
        queue_count: int = 8,
        auto_create: bool = True,
        name: str = "broker-a",
        tls: bool = False,
    ) -> None:
        # Clients use real clocks, so start at the real time.
        self.clock = clock or ManualClock(time.time_ns() // 1_000_000)
        self._data = None if data is None else Path(data)
        #: The ledgers that ``run_checks`` reads.
        self.ledgers = list(ledgers)
        # Checks run when the test calls ``run_checks``, unless it lets the broker check by itself.
        given = policy or CheckPolicy()
        by_test = replace(given, checked_by="pipeline")
        self._policy = by_test if given.checked_by == "auto" else given
        # Tests need no protection against power cuts, flushes are slow, and brokers share a disk.
        self._store = replace(store or StoreConfig(free_bytes_min=FREE_BYTES_MIN), durability="os")
        self._topics = TopicsConfig(queue_count=queue_count, auto_create=auto_create)
        self._broker_config = BrokerConfig(port=0, name_port=0, grpc_port=OFF, name=name)
        self._tls = TlsConfig(mode="required" if tls else "off")
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._thread: BackgroundLoop | None = None
        self._server: WatchedServer | None = None

    # Start and stop.

    def start(self) -> None:
        """Start the broker; after ``stop``, with the same data at the same address."""
        if self._server is not None:
            return
        if self._thread is None:
            self._thread = BackgroundLoop()
        if self._data is None:
            self._folder = tempfile.TemporaryDirectory(prefix="escrowmq-")
            self._data = Path(self._folder.name)
        self._server = self._thread.run(self._started(self._data), START_S_MAX)
        _, _, name_port = self._server.name_address.rpartition(":")
        _, _, port = self._server.broker_address.rpartition(":")
        self._broker_config = replace(self._broker_config, name_port=int(name_port), port=int(port))

    async def _started(self, data: Path) -> WatchedServer:
        server = WatchedServer(
            data,
            self.clock,
            broker=self._broker_config,
            store=self._store,
            policy=self._policy,
            topics=self._topics,
            writer=WriterConfig(),
            tls=self._tls,
        )
        await server.start()
        return server

    def stop(self) -> None:
        """Stop the broker. Its data is kept until the ``with`` block ends."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            self._thread.run(server.stop())

    def restart(self) -> None:
        """Stop and start again."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the broker, and delete its temporary folder."""
        self.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            self._data = None
            folder.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Addresses.

    @property
    def address(self) -> str:
        """The name server's address, for producers and consumers."""
        return self._running.name_address

    @property
    def broker_address(self) -> str:
        """The broker's own address, for tools."""
        address = self._running.broker_address
        return address if self.tls is None else TlsAddress(address, self.tls)

    @property
    def tls(self) -> Tls | None:
        """How clients use TLS; None if the broker does not use it."""
        if self._tls.mode == "off" or self._data is None:
            return None
        return Tls(ca_file=self._data / broker_tls.FOLDER / broker_tls.CERT)

    # Calls for tests.

    def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        """Let time pass. Delayed messages and retries that came due are visible afterwards."""
        self.clock.advance(ms=ms, seconds=seconds)
        self._run(self._running.catch_up())

    def run_checks(self, *, timeout_s: float = 10.0) -> Round:
        """Run one round of the pipeline's rules over all undecided transactions that are due.

        This returns when all producers that were asked have answered, and the answers are durable.
        """
        server = self._running
        server.answered.clear()
        with NativeCalls(self.broker_address) as calls:
            ledgers = {ledger.uuid(): ledger for ledger in self.ledgers}
            port = _Port(calls, ledgers, self.clock)
            done = Settler(port, self._policy, port.look_up).run_once()
        try:
            self._run(asyncio.wait_for(server.until_answered(done.asked), timeout_s))
        except TimeoutError:
            raise Unavailable(
                "checks_unanswered",
                "a producer was asked and did not answer",
                half_offsets=sorted(set(done.asked) - server.answered),
            ) from None
        return done

    @overload
    def messages(
        self, topic: str, body_type: None = None, *, codec: Codec = JSON
    ) -> list[Received]: ...

    @overload
    def messages(
        self, topic: str, body_type: type[T], *, codec: Codec = JSON
    ) -> list[Received[T]]: ...

    def messages(self, topic: str, body_type: Any = None, *, codec: Codec = JSON) -> list[Received]:
        """Return the messages that consumers can see, in the order in which they became visible.

        With ``body_type`` each message has its decoded body as ``value``.
        """
        self._run(self._running.until_published())
        found = self._run(_called(self._running.visible, topic))
        if body_type is None:
            return found
        reader = reader_of(body_type, (codec,))
        return [reader.typed(message) for message in found]

    @overload
    def values(self, topic: str, body_type: type[T], *, codec: Codec = JSON) -> list[T]: ...

    @overload
    def values(self, topic: str, body_type: object, *, codec: Codec = JSON) -> list[Any]: ...

    def values(self, topic: str, body_type: Any, *, codec: Codec = JSON) -> list[Any]:
        """Return the bodies of the messages that consumers can see, as objects of this type."""
        return [message.value for message in self.messages(topic, body_type, codec=codec)]

    def dead_letters(self, group: str) -> list[Received]:
        """Return the messages that a consumer group has given up."""
        return self.messages(f"{DLQ_PREFIX}{group}")

    def lag(self, topic: str, group: str) -> int:
        """Return a group's lag in messages. Consumers report offsets every 5 s and at stop."""
        return self._run(_called(lambda name: self._running.lag(name, group), topic))

    def undecided(self) -> Sequence[CheckableTransaction]:
        """Return the undecided transactions."""
        with NativeCalls(self.broker_address) as calls:
            return BrokerPort(calls).undecided()

    def create_topic(self, name: str, *, queues: int = 1) -> None:
        """Make a topic. Otherwise the first message makes it, if ``auto_create`` is set."""
        topic = Topic(
            name=name,
            read_queue_count=queues,
            write_queue_count=queues,
            created_at_ms=self.clock.now_ms(),
        )
        broker = self._running.broker
        accepted(self._run(broker.writer.submit(broker.topics.put(topic))))

    # Internals.

    @property
    def _running(self) -> WatchedServer:
        if self._server is None:
            raise RequestRefused("broker_not_started", "use it in a with block")
        return self._server

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        return self._thread.run(work)


async def _called(function: Callable[[ArgumentT], T], argument: ArgumentT) -> T:
    """Call a plain function on the broker's event loop, so that nothing runs concurrently."""
    return function(argument)


class _Port(BrokerPort):
    """Settle port of a broker, with the ledgers that may be read."""

    def __init__(
        self, calls: NativeCalls, ledgers: dict[str, SqlLedger], clock: ManualClock
    ) -> None:
        super().__init__(calls)
        self._ledgers = ledgers
        self._clock = clock

    def undecided(self) -> Sequence[CheckableTransaction]:
        """Return all transactions that may be checked; a ledger not given here counts as absent."""
        # Read the broker's history before its transactions.
        self.policy()
        return [
            half if half.ledger in self._ledgers else msgspec.structs.replace(half, ledger="")
            for half in super().undecided()
        ]

    def look_up(self, half: CheckableTransaction) -> Resolution | str:
        """Read the transaction's row in the ledger, or fence it if its deadline has passed."""
        now_ms = self._clock.now_ms()
        deadline_at_ms = now_ms - half.age_ms + half.allowed_ms
        question = Question(half.transaction_id, half.group, deadline_at_ms, half.half_offset)
        answers = self._ledgers[half.ledger].resolve(
            [question], ledger_uuid=half.ledger, now_ms=now_ms, sight=self.sight
        )
        answer = answers[half.transaction_id]
        return MAYBE_SWEPT if answer.reason == MAYBE_SWEPT else _RESOLUTIONS[answer.outcome]


class AsyncInProcessBroker:
    """``InProcessBroker`` for tests with an event loop, which no call blocks."""

    def __init__(self, plain: InProcessBroker | None = None, **settings: Any) -> None:  # noqa: ANN401 - those of InProcessBroker
        self.plain = plain or InProcessBroker(**settings)
        self.clock = self.plain.clock

    async def start(self) -> None:
        """Start the broker."""
        await asyncio.to_thread(self.plain.start)

    async def stop(self) -> None:
        """Stop the broker."""
        await asyncio.to_thread(self.plain.stop)

    async def restart(self) -> None:
        """Stop and start again."""
        await asyncio.to_thread(self.plain.restart)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.plain.close)

    @property
    def address(self) -> str:
        """The name server's address, for producers and consumers."""
        return self.plain.address

    @property
    def broker_address(self) -> str:
        """The broker's own address, for tools."""
        return self.plain.broker_address

    async def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        """Let time pass."""
        await asyncio.to_thread(self.plain.advance, seconds=seconds, ms=ms)

    async def run_checks(self, *, timeout_s: float = 10.0) -> Round:
        """Run one round over all undecided transactions that are due."""
        return await asyncio.to_thread(self.plain.run_checks, timeout_s=timeout_s)

    @overload
    async def messages(
        self, topic: str, body_type: None = None, *, codec: Codec = JSON
    ) -> list[Received]: ...

    @overload
    async def messages(
        self, topic: str, body_type: type[T], *, codec: Codec = JSON
    ) -> list[Received[T]]: ...

    async def messages(
        self, topic: str, body_type: Any = None, *, codec: Codec = JSON
    ) -> list[Received]:
        """Return the visible messages; with ``body_type``, each with its body as ``value``."""
        return await asyncio.to_thread(self.plain.messages, topic, body_type, codec=codec)

    @overload
    async def values(self, topic: str, body_type: type[T], *, codec: Codec = JSON) -> list[T]: ...

    @overload
    async def values(self, topic: str, body_type: object, *, codec: Codec = JSON) -> list[Any]: ...

    async def values(self, topic: str, body_type: Any, *, codec: Codec = JSON) -> list[Any]:
        """Return the bodies of the messages that consumers can see, as objects of this type."""
        return await asyncio.to_thread(self.plain.values, topic, body_type, codec=codec)

    async def dead_letters(self, group: str) -> list[Received]:
        """Return the messages that a consumer group has given up."""
        return await asyncio.to_thread(self.plain.dead_letters, group)

    async def lag(self, topic: str, group: str) -> int:
        """Return how many messages a group has not acknowledged."""
        return await asyncio.to_thread(self.plain.lag, topic, group)

    async def undecided(self) -> Sequence[CheckableTransaction]:
        """Return the undecided transactions."""
        return await asyncio.to_thread(self.plain.undecided)

    async def create_topic(self, name: str, *, queues: int = 1) -> None:
        """Make a topic."""
        await asyncio.to_thread(self.plain.create_topic, name, queues=queues)
