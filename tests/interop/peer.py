"""A peer: a process that runs stock clients, and the list of its abilities."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from enum import Enum, auto
from types import TracebackType
from typing import Self

from tests.interop.building import CACHE
from tests.interop.child import Child, Usage
from tests.interop.clients import (
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from tests.interop.lines import Events, LineProcess
from tests.interop.values import FromWhere, Model, Ready, Received

READY_TIMEOUT_S = 60


class Ability(Enum):
    """Abilities that not every stock client has."""

    SEND = auto()
    ASYNC = auto()
    BATCH = auto()
    QUEUE_SELECTOR = auto()
    DELAY_LEVEL = auto()
    DELIVER_TIME = auto()
    TRANSACTION = auto()
    #: Its listener may fail without stopping the client.
    THROWING_LISTENER = auto()
    PUSH = auto()
    ORDERLY = auto()
    BROADCAST = auto()
    LITE_PULL = auto()
    PULL = auto()
    PULL_ALL = auto()
    LOOK_UP = auto()
    MQADMIN = auto()
    TRACE = auto()
    #: Its push consumers can leave the queues to the broker, and pop.
    POP = auto()


class Peer:
    """A process with stock clients. Use it in a ``with`` block, which ends the process."""

    #: The peer's name in figures and test names.
    name: str
    abilities: frozenset[Ability]

    def __init__(self) -> None:
        self._names = itertools.count(1)
        self._lines: LineProcess | None = None

    def another(self) -> Peer:
        """Return a peer with the same clients in another process, not started yet."""
        return type(self)()

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        """Return the program to run and its environment; build it if needed."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        command, environment = self.command()
        log = CACHE / "logs" / f"{self.name}-{secrets.token_hex(4)}.log"
        # Some mqadmin commands write files into the current directory.
        directory = CACHE / "home"
        directory.mkdir(parents=True, exist_ok=True)
        self._lines = LineProcess(
            Child(self.name, command, log=log, environment=environment, directory=directory)
        )
        try:
            self.events.wait_for(Ready, timeout_s=READY_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process without a clean shutdown, as a crash would."""
        self.lines.close()

    @property
    def lines(self) -> LineProcess:
        assert self._lines is not None, "use the peer in a with block"
        return self._lines

    @property
    def events(self) -> Events:
        return self.lines.events

    def usage(self) -> Usage:
        return self.lines.child.usage()

    def start_producer(self, name_server: str, group: str, **options: object) -> Producer:
        return Producer(*self._start("start_producer", name_server, group=group, **options))

    def start_transaction_producer(
        self, name_server: str, group: str, **options: object
    ) -> TransactionProducer:
        return TransactionProducer(
            *self._start("start_producer", name_server, group=group, transactional=True, **options)
        )

    def start_push_consumer(
        self,
        name_server: str,
        group: str,
        topic: str,
        *,
        expression: str = "*",
        model: Model = Model.CLUSTERING,
        orderly: bool = False,
        from_where: FromWhere = FromWhere.FIRST,
        fail: Mapping[str, int] | None = None,
        **options: object,
    ) -> PushConsumer:
        """Start a push consumer; ``fail`` is the count of refused deliveries for each key."""
        return PushConsumer(
            *self._start(
                "start_push_consumer",
                name_server,
                group=group,
                topic=topic,
                expression=expression,
                model=str(model),
                orderly=orderly,
                from_where=str(from_where),
                fail=dict(fail or {}),
                **options,
            )
        )

    def start_lite_pull_consumer(
        self,
        name_server: str,
        group: str,
        topic: str,
        *,
        expression: str = "*",
        assign: bool = False,
        auto_commit: bool = False,
    ) -> LitePullConsumer:
        """Start a pull consumer; ``assign`` takes all queues without a rebalance."""
        return LitePullConsumer(
            *self._start(
                "start_lite_pull_consumer",
                name_server,
                group=group,
                topic=topic,
                expression=expression,
                assign=assign,
                auto_commit=auto_commit,
            )
        )

    def start_pull_consumer(self, name_server: str, group: str) -> PullConsumer:
        return PullConsumer(*self._start("start_pull_consumer", name_server, group=group))

    def query_by_key(
        self, name_server: str, topic: str, key: str, *, max_count: int = 32
    ) -> list[Received]:
        """Use the client's message index query, over all time."""
        answer = self.lines.call(
            "query_by_key",
            {"name_server": name_server, "topic": topic, "key": key, "max": max_count},
        )
        return [Received.of(fields) for fields in answer["messages"]]

    def view(self, name_server: str, topic: str, message_id: str) -> Received:
        """Return the message with this id, which may be either kind of id."""
        answer = self.lines.call(
            "view", {"name_server": name_server, "topic": topic, "message_id": message_id}
        )
        return Received.of(answer["message"])

    def resume(self, name_server: str, topic: str, message_id: str) -> bool:
        """Resume the back-checks of a parked transaction."""
        fields = {"name_server": name_server, "topic": topic, "message_id": message_id}
        resumed: bool = self.lines.call("resume", fields)["resumed"]
        return resumed

    def mqadmin(self, *arguments: str) -> str:
        """Run the command; return its output.

        It runs in the peer's own process, so unknown arguments end the peer.
        """
        text: str = self.lines.call("mqadmin", {"arguments": list(arguments)})["text"]
        return text

    def mqadmin_by_id(self, name_server: str, topic: str, message_id: str) -> str:
        """Return what mqadmin prints about the message with this offset id."""
        return self.mqadmin("queryMsgById", "-n", name_server, "-t", topic, "-i", message_id)

    def _start(
        self, command: str, name_server: str, **fields: object
    ) -> tuple[LineProcess, str, str]:
        name = f"c{next(self._names)}"
        answer = self.lines.call(command, {"client": name, "name_server": name_server, **fields})
        return self.lines, name, answer["client_id"]
