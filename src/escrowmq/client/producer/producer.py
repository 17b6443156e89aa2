"""Producers: they send messages, alone or in transactions; in sync and async form.

    producer = Producer("127.0.0.1:9876", group="orders", ledger=SqlLedger(engine))

    with producer.transaction(Session(engine)) as tx:
        tx.db.add(Order(id=42, paid=True))
        tx.send("order-paid", b"42", key="42")

A producer starts when it is first used. Threads, or tasks of one loop, may share it.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any, TypeVar

from escrowmq.client.config import ProducerConfig, with_settings
from escrowmq.client.messages.codecs import Codec
from escrowmq.client.messages.message_ids import new_transaction_id
from escrowmq.client.messages.messages import (
    Body,
    Message,
    MessageFields,
    SendStatus,
    Sent,
    fill_in,
    message_of,
)
from escrowmq.client.messages.outgoing import FinalDecision, HeldTransaction
from escrowmq.client.messages.rocketmq_rules import check_message
from escrowmq.client.network.background import background
from escrowmq.client.producer.core import ProducerCore
from escrowmq.client.producer.listener import Executed, TransactionListener, resolution_of
from escrowmq.client.producer.transaction import AsyncTransaction, Transaction
from escrowmq.client.producer.transaction_begun import AsyncBegunTransaction, BegunTransaction
from escrowmq.client.trampoline import Calls, SyncOrAsync, run, run_async
from escrowmq.client.with_blocks import AsyncWithBlock, WithBlock
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.properties import TRANSACTION_ID

if TYPE_CHECKING:
    from typing import Unpack

    from escrowmq.client.ledger.table import SqlLedger
    from escrowmq.client.producer.checks import Ask

log = event_log(__name__)

#: How long the exit of the program waits for each producer that was not closed.
EXIT_S = 3.0

DatabaseT = TypeVar("DatabaseT")


class _Producer:
    """Shared part of both producers.

    ``ledger`` enables ``transaction`` and answers its back-checks. ``listener`` is for
    ``send_in_transaction``. ``checker`` answers back-checks of half messages that were sent with
    ``begin`` or ``send_half``. ``codec`` encodes bodies that are objects; the default is JSON.
    ``topics`` declares topics: the producer looks for them when it starts, and does not start if
    one is unknown and no message may create it. It may send to other topics as well.
    ``config``, or its single settings, sets the timeouts.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        *,
        ledger: SqlLedger | None = None,
        listener: TransactionListener | None = None,
        checker: Ask | None = None,
        codec: Codec | None = None,
        topics: Sequence[str] = (),
        config: ProducerConfig | None = None,
        **settings: Any,  # noqa: ANN401 - fields of ProducerConfig, which checks them
    ) -> None:
        if listener is not None and checker is not None:
            raise RequestRefused(
                "bad_config", "a listener checks transactions itself", key="producer.checker"
            )
        self._listener = listener
        self._core = ProducerCore(
            name_servers,
            group,
            ledger=ledger,
            ask=checker if listener is None else listener.check_local_transaction,
            config=with_settings(ProducerConfig, config, settings, "producer"),
            codec=codec,
            topics=topics,
        )
        self._made()

    def _made(self) -> None:
        """Register the producer for cleanup, where that is needed."""

    @property
    def group(self) -> str:
        """The producer group; its members answer each other's back-checks."""
        return self._core.group

    @property
    def config(self) -> ProducerConfig:
        """The settings of this producer."""
        return self._core.config

    def __repr__(self) -> str:
        core = self._core
        what = f"{';'.join(core.servers)}, group={core.group!r}"
        return f"<{type(self).__name__} {what}{', started' if core.is_started else ''}>"

    def _hold(self, message: Message) -> Coroutine[Any, Any, HeldTransaction]:
        return self._core.call(lambda it: it.hold(new_transaction_id(), [message]))

    def _end(
        self, held: HeldTransaction, resolution: Resolution
    ) -> Coroutine[Any, Any, FinalDecision]:
        return self._core.call(lambda it: it.decide(held, resolution))

    def _tell_failure(
        self,
        held: HeldTransaction,
        failure: Exception,
        told: Callable[[Coroutine[Any, Any, Any]], SyncOrAsync],
    ) -> SyncOrAsync:
        return told(self._core.call(lambda it: it.tell_failure(held, failure)))

    def _execute(
        self,
        listener: TransactionListener,
        message: Message,
        arg: object,
        told: Callable[[Coroutine[Any, Any, Any]], SyncOrAsync],
    ) -> Calls[Executed]:
        """Return the steps of ``send_in_transaction``; ``told`` runs or returns a request."""
        held: HeldTransaction = yield lambda: told(self._hold(message))
        # The caller's mapping may serve several messages, so it is copied.
        message.properties = {**(message.properties or {}), TRANSACTION_ID: held.id_property}
        resolution = Resolution.UNKNOWN
        failure: Exception | None = None
        try:
            answer = yield partial(listener.execute_local_transaction, message, arg)
            resolution = resolution_of(answer)
        except Exception as error:
            log.exception("listener_failed", extra={"transaction_id": held.transaction_id})
            failure = error
        decided = None
        try:
            if failure is not None:
                yield partial(self._tell_failure, held, failure, told)
            elif resolution is not Resolution.UNKNOWN:
                decided = yield lambda: told(self._end(held, resolution))
        except EscrowError as error:
            # A back-check will ask the listener.
            facts = {"transaction_id": held.transaction_id, "why": str(error)}
            log.warning("decision_untold", extra=facts)
        return Executed(
            **{name: getattr(held, name) for name in _OF_HELD},
            # ``hold`` has raised and rolled back if the half message was stored less safely.
            status=SendStatus.SEND_OK,
            resolution=resolution,
            decided=decided,
            error=failure,
        )

    def _its_listener(self) -> TransactionListener:
        if self._listener is None:
            raise RequestRefused(
                "producer_without_listener", "make it with listener=…", producer_group=self.group
            )
        return self._listener


class AsyncProducer(_Producer, AsyncWithBlock):
    """Producer for programs with an event loop; it belongs to the loop of its first use."""

    async def start(self) -> None:
        """Register with the brokers now; Unavailable if no name server answers in time."""
        await self._core.started()

    async def close(self) -> None:
        """Wait for calls in flight, and unregister."""
        await self._core.close()

    async def _enter(self) -> None:
        await self.start()

    async def _leave(self, _error: BaseException | None) -> None:
        await self.close()

    def _sealed(self, message: Message) -> Message:
        """Encode a body that is an object before anything is sent; return the message."""
        message.seal(self._core.codec)
        return message

    async def send(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> Sent:
        """Store a message; it is durable when this returns."""
        message = self._sealed(message_of(topic, body, fields))
        return await self._core.call(lambda it: it.send(message))

    async def send_many(self, messages: Iterable[Message]) -> list[Sent]:
        """Store messages, in as few requests as possible.

        All are tried, then the first error is raised; the other messages may have been stored.
        """
        return await self._core.call(lambda it: it.send_many(map(_unsealed, messages)))

    def transaction(self, db: DatabaseT) -> AsyncTransaction[DatabaseT]:
        """Return a block whose messages go out if, and only if, the database commits."""
        return AsyncTransaction(self._core, db)

    def begin(self) -> AsyncBegunTransaction:
        """Begin a transaction whose messages are held at once, and which you decide."""
        return AsyncBegunTransaction(self._core)

    async def send_half(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> HeldTransaction:
        """Send one half message to be held; ``end`` decides it."""
        return await self._hold(self._sealed(message_of(topic, body, fields)))

    async def end(self, held: HeldTransaction, resolution: Resolution) -> FinalDecision:
        """Decide a held transaction; the first decision stands, whatever its source."""
        return await self._end(held, resolution)

    async def send_in_transaction(self, message: Message, arg: object = None) -> Executed:
        """Hold the message, run the listener's local transaction, and decide by its result.

        A message that RocketMQ's clients refuse is refused, such as one with an empty body.
        """
        listener = self._its_listener()
        check_message(message, self._core.codec)
        return await run_async(self._execute(listener, message, arg, lambda work: work), call)

    async def clean_ledger(self) -> int:
        """Delete ledger rows of durably decided transactions; return how many."""
        return await self._core.clean_ledger()


class Producer(_Producer, WithBlock):
    """Producer for programs without an event loop. Threads may share it; a forked child may use it.

    One background thread does the network I/O. The database, and a listener's local transaction,
    are used on the caller's thread.
    """

    def _made(self) -> None:
        _unclosed.add(self)
        weakref.finalize(self, _forsake, self._core).atexit = False

    def start(self) -> None:
        """Register with the brokers now; Unavailable if no name server answers in time."""
        background().run(self._core.started())

    def close(self) -> None:
        """Wait for calls in flight, and unregister."""
        background().run(self._core.close())
        _unclosed.discard(self)

    def _enter(self) -> None:
        self.start()

    def _leave(self, _error: BaseException | None) -> None:
        self.close()

    def _filled_in(self, message: Message) -> Message:
        """Encode the body, and call the functions for body and key, on the caller's thread."""
        fill_in(message, self._core.codec)
        return message

    def send(self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]) -> Sent:
        """Store a message; it is durable when this returns."""
        message = self._filled_in(message_of(topic, body, fields))
        return background().run(self._core.call(lambda it: it.send(message)))

    def send_many(self, messages: Iterable[Message]) -> list[Sent]:
        """Store messages, in as few requests as possible.

        A body that cannot be encoded fails before anything is sent. Otherwise all are tried, then
        the first error is raised; the other messages may have been stored.
        """
        filled_in = [self._filled_in(one) for one in messages]
        return background().run(self._core.call(lambda it: it.send_many(filled_in)))

    def transaction(self, db: DatabaseT) -> Transaction[DatabaseT]:
        """Return a block whose messages go out if, and only if, the database commits."""
        return Transaction(self._core, db)

    def begin(self) -> BegunTransaction:
        """Begin a transaction whose messages are held at once, and which you decide."""
        return BegunTransaction(self._core)

    def send_half(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> HeldTransaction:
        """Send one half message to be held; ``end`` decides it."""
        return background().run(self._hold(self._filled_in(message_of(topic, body, fields))))

    def end(self, held: HeldTransaction, resolution: Resolution) -> FinalDecision:
        """Decide a held transaction; the first decision stands, whatever its source."""
        return background().run(self._end(held, resolution))

    def send_in_transaction(self, message: Message, arg: object = None) -> Executed:
        """Hold the message, run the listener's local transaction, and decide by its result.

        A message that RocketMQ's clients refuse is refused, such as one with an empty body.
        """
        listener = self._its_listener()
        if inspect.iscoroutinefunction(listener.execute_local_transaction):
            raise RequestRefused("listener_needs_await", "use an AsyncProducer")
        check_message(message, self._core.codec)
        return run(self._execute(listener, message, arg, background().run), call)

    def clean_ledger(self) -> int:
        """Delete ledger rows of durably decided transactions; return how many."""
        return background().run(self._core.clean_ledger())


#: The fields of ``Executed`` that are copied from the held transaction.
_OF_HELD = ("transaction_id", "message_id", "topic", "broker_name", "queue_id", "half_offset")


def _unsealed(message: Message) -> Message:
    message.unseal()
    return message


_unclosed: weakref.WeakSet[Producer] = weakref.WeakSet()


def _forsake(core: ProducerCore) -> None:
    """Close a garbage-collected producer without waiting, from any thread."""
    if core.is_started:
        asyncio.run_coroutine_threadsafe(core.close(), background().loop)


def _close_all() -> None:
    for producer in list(_unclosed):
        if producer._core.is_started:  # noqa: SLF001 - this module's own
            try:
                background().run(producer._core.close(), EXIT_S)  # noqa: SLF001
            except Exception as error:  # noqa: BLE001 - the program ends anyway
                log.warning("producer_not_closed", extra={"why": str(error)})


atexit.register(_close_all)
