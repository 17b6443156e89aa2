"""A real Apache RocketMQ name server and broker, from Maven Central's jars."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from tests.interop import building, remoting
from tests.interop.building import CACHE, JAVA_5
from tests.interop.child import Child
from tests.interop.running import BOOT_TIMEOUT_S, RunningBroker, start_saying

#: Relative to the broker's port: its fast listener is 2 below, its replication port 1 above.
FAST_LISTENER = -2
REPLICATION = 1
PORT_TRIES_MAX = 100
#: Linux gives outgoing connections ports from 32,768 on, so one of them could take a port there
#: before the broker does.
PORTS = range(10_000, 32_000)
IS_UP = "boot success"
BROKER_FILE = "broker.properties"
PROXY_FILE = "proxy.json"

NAME_SERVER_HEAP = ("-Xms64m", "-Xmx128m", "-XX:+UseSerialGC")
BROKER_HEAP = ("-Xms512m", "-Xmx1g")
#: Packages that the broker's own start script opens for a current JDK.
OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)


class ApacheRocketMQ(RunningBroker):
    """A name server and a broker, one process each."""

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
        super().__init__("apache")
        self.version = version
        self.advertised_host = advertised_host
        self._heap = broker_heap
        self._settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH",
            # The first registration is sometimes lost; the next one comes after this period.
            "registerNameServerPeriod": "10000",
            "autoCreateTopicEnable": "true",
            "autoCreateSubscriptionGroup": "true",
            "transactionTimeOut": str(check_after_ms),
            "transactionCheckInterval": str(check_interval_ms),
            "transactionCheckMax": str(checks_max),
            **({"messageDelayLevel": delay_levels} if delay_levels else {}),
            **(settings or {}),
        }

    def boot(self, home: Path) -> None:
        lib = self._lib()
        self._start_name_server(lib, home)
        self._start_broker(lib, home)
        # The broker reports that it is up even before the name server knows it.
        remoting.brokers(self.name_server, timeout_s=BOOT_TIMEOUT_S)

    _broker_is_up = IS_UP

    def _lib(self) -> Path:
        return building.apache(self.version) / "lib"

    def _start_name_server(self, lib: Path, home: Path) -> None:
        port = free_port((0,))
        self.name_server = f"127.0.0.1:{port}"
        file = home / "namesrv.properties"
        _write(file, {"listenPort": str(port), "bindAddress": "127.0.0.1"})
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        self._start("namesrv", main, ["-c", str(file)], lib, home)

    def _start_broker(self, lib: Path, home: Path) -> None:
        main = "org.apache.rocketmq.broker.BrokerStartup"
        arguments = ["-c", str(self._broker_file(home))]
        self.serving = self._start("broker", main, arguments, lib, home)

    def _broker_file(self, home: Path) -> Path:
        """Write the broker's settings and choose its address; return the path of the file."""
        port = free_port((FAST_LISTENER, 0, REPLICATION))
        self.broker_address = f"127.0.0.1:{port}"
        settings = {
            "namesrvAddr": self.name_server,
            "brokerIP1": self.advertised_host,
            "bindAddress": "127.0.0.1",
            "listenPort": str(port),
            "haListenPort": str(port + REPLICATION),
            "storePathRootDir": str(home / "store"),
            "storePathCommitLog": str(home / "store" / "commitlog"),
            **self._settings,
        }
        file = home / BROKER_FILE
        _write(file, settings)
        return file

    def _start(self, name: str, main: str, arguments: list[str], lib: Path, home: Path) -> Child:
        child, _ = start_saying(
            self._broker_is_up if name == "broker" else IS_UP,
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
        self.children.append(child)
        return child


class ApacheWithProxy(ApacheRocketMQ):
    """The same with the gRPC proxy for 5.x clients, in one process with the broker."""

    grpc_endpoint = ""
    # The broker in this process prints its own line before the proxy is up.
    _broker_is_up = "startup successfully"

    def _lib(self) -> Path:
        return building.apache_proxy(self.version) / "lib"

    def _start_broker(self, lib: Path, home: Path) -> None:
        grpc, remoting_port = free_port((0,)), free_port((0,))
        self.grpc_endpoint = f"127.0.0.1:{grpc}"
        settings = {
            "rocketMQClusterName": self._settings["brokerClusterName"],
            "namesrvAddr": self.name_server,
            "grpcServerPort": grpc,
            "remotingListenPort": remoting_port,
        }
        (home / PROXY_FILE).write_text(json.dumps(settings))
        self._broker_file(home)
        self._start_proxy(lib, home)

    def _start_proxy(self, lib: Path, home: Path) -> None:
        main = "org.apache.rocketmq.proxy.ProxyStartup"
        files = {"-pc": home / PROXY_FILE, "-bc": home / BROKER_FILE}
        arguments = [text for option, file in files.items() for text in (option, str(file))]
        self.serving = self._start("broker", main, ["-pm", "local", *arguments], lib, home)

    def kill(self) -> None:
        """Kill the broker and its proxy, as a crash of the machine would."""
        assert self.serving is not None, "it does not run"
        self.children.remove(self.serving)
        self.serving.kill()

    def start_again(self) -> None:
        """Start again on the same data and the same ports."""
        self._start_proxy(self._lib(), self.home)


def _write(file: Path, settings: Mapping[str, str]) -> None:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


def free_port(offsets: tuple[int, ...]) -> int:
    """Return a port that is free together with its neighbors."""
    for _ in range(PORT_TRIES_MAX):
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for offset in offsets:
                held.enter_context(socket.create_server(("127.0.0.1", port + offset)))
            return port
    raise OSError("no free ports side by side")
