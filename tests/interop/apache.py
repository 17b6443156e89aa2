"""A real Apache RocketMQ name server and broker, from Maven Central's jars."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interop import building, remoting
from tests.interop.building import CACHE, JAVA_5
from tests.interop.child import Child, Usage

#: From the broker's port: its fast listener is 2 below, its replication 1 above.
FAST_LISTENER = -2
REPLICATION = 1
PORT_TRIES_MAX = 100
RUNS = "apache-run-"
BOOT_TIMEOUT_S = 60
#: The name server and the broker say the first, the proxy says the second.
IS_UP = (b"boot success", b"startup successfully")

NAME_SERVER_HEAP = ("-Xms64m", "-Xmx128m", "-XX:+UseSerialGC")
BROKER_HEAP = ("-Xms512m", "-Xmx1g")
#: What its own start script opens for a JDK of today.
OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)


class ApacheRocketMQ:
    """Use it in a ``with`` block: at its end both processes and their files are gone."""

    def __init__(
        self,
        version: str = JAVA_5,
        *,
        sync_flush: bool = False,
        check_after_ms: int = 6_000,
        check_interval_ms: int = 30_000,
        checks_max: int = 15,
        delay_levels: str | None = None,
        advertised_host: str = "127.0.0.1",
        broker_heap: tuple[str, ...] = BROKER_HEAP,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.version = version
        self.advertised_host = advertised_host
        self._heap = broker_heap
        self._settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH",
            # Its first registration is lost at times; the next comes after this.
            "registerNameServerPeriod": "10000",
            "autoCreateTopicEnable": "true",
            "autoCreateSubscriptionGroup": "true",
            "transactionTimeOut": str(check_after_ms),
            "transactionCheckInterval": str(check_interval_ms),
            "transactionCheckMax": str(checks_max),
            **({"messageDelayLevel": delay_levels} if delay_levels else {}),
            **(settings or {}),
        }
        self._home: Path | None = None
        self._name_server: Child | None = None
        self._broker: Child | None = None
        self.name_server = ""
        self.broker_address = ""

    def __enter__(self) -> Self:
        lib = self._lib()
        remove_orphans()
        self._home = Path(tempfile.mkdtemp(prefix=f"{RUNS}{os.getpid()}-", dir=CACHE))
        try:
            self._start_name_server(lib, self._home)
            self._start_broker(lib, self._home)
            # It says that it is up even when the name server has not heard of it yet.
            remoting.brokers(self.name_server, timeout_s=BOOT_TIMEOUT_S)
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
        for child in (self._broker, self._name_server):
            if child is not None:
                child.kill()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    @property
    def home(self) -> Path:
        """Where its files are while it runs."""
        assert self._home is not None
        return self._home

    def create_topic(self, topic: str, queues: int = 4, kind: str = "NORMAL") -> None:
        remoting.create_topic(self.name_server, topic, queues, kind)

    def usage(self) -> Usage:
        """Of the broker alone: a name server does nothing while messages flow."""
        assert self._broker is not None
        return self._broker.usage()

    def _start_name_server(self, lib: Path, home: Path) -> None:
        port = free_port((0,))
        self.name_server = f"127.0.0.1:{port}"
        file = home / "namesrv.properties"
        _write(file, {"listenPort": str(port), "bindAddress": "127.0.0.1"})
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        self._name_server = self._start("namesrv", main, ["-c", str(file)], lib, home)

    def _start_broker(self, lib: Path, home: Path) -> None:
        port = free_port((FAST_LISTENER, 0, REPLICATION))
        self.broker_address = f"127.0.0.1:{port}"
        file = home / "broker.properties"
        _write(file, self._broker_settings(port, home))
        main = "org.apache.rocketmq.broker.BrokerStartup"
        self._broker = self._start("broker", main, ["-c", str(file)], lib, home)

    def _broker_settings(self, port: int, home: Path) -> dict[str, str]:
        return {
            "namesrvAddr": self.name_server,
            "brokerIP1": self.advertised_host,
            "bindAddress": "127.0.0.1",
            "listenPort": str(port),
            "haListenPort": str(port + REPLICATION),
            "storePathRootDir": str(home / "store"),
            "storePathCommitLog": str(home / "store" / "commitlog"),
            **self._settings,
        }

    def _lib(self) -> Path:
        return building.apache(self.version) / "lib"

    def _start(self, name: str, main: str, arguments: list[str], lib: Path, home: Path) -> Child:
        child = Child(
            f"apache-{name}",
            [
                building.java(),
                *(self._heap if name == "broker" else NAME_SERVER_HEAP),
                *OPENED,
                f"-Duser.home={home}",
                f"-Drocketmq.home.dir={home}",
                "-cp",
                f"{lib}/*",
                main,
                *arguments,
            ],
            log=CACHE / "logs" / f"apache-{name}-{home.name}.log",
            environment={"ROCKETMQ_HOME": str(home)},
            directory=home,
        )
        try:
            wait_for_boot(child)
        except BaseException:
            child.kill()
            raise
        return child


class ApacheWithProxy(ApacheRocketMQ):
    """The same with 5.x clients' way in: the proxy and the broker share a process."""

    grpc_endpoint = ""

    def _lib(self) -> Path:
        return building.apache_proxy(self.version) / "lib"

    def _start_broker(self, lib: Path, home: Path) -> None:
        port = free_port((FAST_LISTENER, 0, REPLICATION))
        self.broker_address = f"127.0.0.1:{port}"
        broker = home / "broker.properties"
        _write(broker, self._broker_settings(port, home))
        grpc, remoting_port = free_port((0,)), free_port((0,))
        self.grpc_endpoint = f"127.0.0.1:{grpc}"
        proxy = home / "proxy.json"
        proxy.write_text(
            json.dumps(
                {
                    "rocketMQClusterName": self._settings["brokerClusterName"],
                    "namesrvAddr": self.name_server,
                    "grpcServerPort": grpc,
                    "remotingListenPort": remoting_port,
                }
            )
        )
        main = "org.apache.rocketmq.proxy.ProxyStartup"
        arguments = ["-pm", "local", "-pc", str(proxy), "-bc", str(broker)]
        self._broker = self._start("broker", main, arguments, lib, home)


def remove_orphans() -> None:
    """The files of brokers whose owner was killed, and they with it."""
    for place in CACHE.glob(f"{RUNS}*"):
        owner = place.name.removeprefix(RUNS).partition("-")[0]
        if not (Path("/proc") / owner).exists():
            shutil.rmtree(place, ignore_errors=True)


def _write(file: Path, settings: Mapping[str, str]) -> None:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


def wait_for_boot(child: Child) -> None:
    """All programs say so."""
    timer = threading.Timer(BOOT_TIMEOUT_S, child.kill)
    timer.start()
    try:
        for line in child.stdout:
            if any(words in line for words in IS_UP):
                threading.Thread(target=_drain, args=(child,), daemon=True).start()
                return
    finally:
        timer.cancel()
    raise child.died()


def _drain(child: Child) -> None:
    """Nobody may wait because nobody reads what it prints."""
    # The stream is closed under our feet when the process is ended.
    with contextlib.suppress(ValueError, OSError):
        for _ in child.stdout:
            pass


def free_port(offsets: tuple[int, ...]) -> int:
    """A port that is free together with its neighbours."""
    for _ in range(PORT_TRIES_MAX):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            first = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            port: int = first.getsockname()[1]
            for offset in offsets:
                if offset:
                    held.enter_context(socket.create_server(("127.0.0.1", port + offset)))
            return port
    raise OSError("no free ports side by side")
