"""The official 5.x clients, one class each, as their makers ship them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.interop import building
from tests.interop.grpc_clients.clients import (
    WAIT_MS,
    GrpcProducer,
    GrpcPushConsumer,
    SimpleConsumer,
)
from tests.interop.lines import LineProcess
from tests.interop.peer import Peer
from tests.interop.stock import CLIENT_HOME, SMALL

#: Names a PEM file of the certificates that a client of gRPC's core or of grpc-js trusts.
CA_VARIABLE = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"


HANGS = -1


class GrpcPeer(Peer):
    """A process with 5.x clients of one language."""

    abilities = frozenset()
    #: Whether the client uses TLS unless it is told otherwise.
    has_tls = False
    #: Whether a push consumer repeats a failed message before it goes on to the next one. The Go
    #: client goes on; the Node.js client, which does not know the broker's waits between attempts,
    #: makes the message a dead letter.
    repeats_in_order = True
    #: Whether the client tells that the broker refused an acknowledgement.
    tells_refused_ack = True
    #: Whether the client has a call to recall a delayed message.
    can_recall = True
    #: Whether the listener of its push consumer can be told to hang.
    can_hang = False

    def __init__(self, *, with_tls: bool | None = None, ca_file: Path | None = None) -> None:
        """Take whether to use TLS, by default as the client does, and the CA to trust."""
        super().__init__()
        self._with_tls = with_tls
        self._ca_file = ca_file

    def another(self) -> Self:
        return type(self)(with_tls=self._with_tls, ca_file=self._ca_file)

    def _trust(self) -> dict[str, str]:
        """Return the variable by which gRPC's libraries for Python and Node.js know a CA."""
        return {} if self._ca_file is None else {CA_VARIABLE: str(self._ca_file)}

    def start_grpc_producer(self, endpoints: str, *topics: str) -> GrpcProducer:
        return GrpcProducer(*self._start_at("start_producer", endpoints, topics=topics))

    def start_simple_consumer(
        self,
        endpoints: str,
        group: str,
        topic: str,
        *,
        expression: str = "*",
        wait_ms: int = WAIT_MS,
    ) -> SimpleConsumer:
        return SimpleConsumer(
            *self._start_at(
                "start_simple_consumer",
                endpoints,
                group=group,
                topic=topic,
                expression=expression,
                wait_ms=wait_ms,
            )
        )

    def start_grpc_push_consumer(
        self,
        endpoints: str,
        group: str,
        topic: str,
        *,
        expression: str = "*",
        fail: Mapping[str, int] | None = None,
    ) -> GrpcPushConsumer:
        """Start a push consumer; ``fail`` is the count of refused deliveries for each key.

        With ``HANGS``, its listener never returns.
        """
        return GrpcPushConsumer(
            *self._start_at(
                "start_push_consumer",
                endpoints,
                group=group,
                topic=topic,
                expression=expression,
                fail=dict(fail or {}),
            )
        )

    def _start_at(
        self, command: str, endpoints: str, **fields: object
    ) -> tuple[LineProcess, str, str]:
        tls = self.has_tls if self._with_tls is None else self._with_tls
        return self._start(command, "", endpoints=endpoints, tls=tls, **fields)


class Python5Peer(GrpcPeer):
    can_hang = True
    """PyPI's rocketmq-python-client, driven by ``peers/python5``."""

    name = "python5"

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        driver = building.PEERS / "python5" / "driver.py"
        python = building.python5_peer() / "bin" / "python"
        own = {"HOME": str(CLIENT_HOME), "PYTHONPATH": ""}
        return [str(python), "-u", str(driver)], {**own, **self._trust()}


class Java5Peer(GrpcPeer):
    """org.apache.rocketmq:rocketmq-client-java, driven by ``peers/java5``."""

    name = "java5"
    has_tls = True
    can_hang = True

    #: Options of its Java machine.
    memory: tuple[str, ...] = SMALL

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        place = building.java5_peer()
        classes: tuple[Path, ...] = (place / "classes", place / "lib" / "*")
        return [
            building.java(),
            *self.memory,
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:+DisplayVMOutputToStderr",
            f"-Duser.home={CLIENT_HOME}",
            "-cp",
            ":".join(map(str, classes)),
            "escrowmq.interop.Main",
        ], {}


class Node5Peer(GrpcPeer):
    """npm's rocketmq-client-nodejs, driven by ``peers/node5``."""

    name = "node5"
    repeats_in_order = False

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        place = building.node5_peer()
        own = {"HOME": str(CLIENT_HOME)}
        return [building.node(), str(place / "driver.js")], {**own, **self._trust()}


class Go5Peer(GrpcPeer):
    """github.com/apache/rocketmq-clients/golang/v5, driven by ``peers/go5``."""

    name = "go5"
    has_tls = True
    repeats_in_order = False
    tells_refused_ack = False
    can_recall = False

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        return [str(building.go5_peer() / "driver")], {"HOME": str(CLIENT_HOME)}


def every_grpc_peer() -> tuple[GrpcPeer, ...]:
    """Return one peer of each language."""
    return Python5Peer(), Java5Peer(), Node5Peer(), Go5Peer()
