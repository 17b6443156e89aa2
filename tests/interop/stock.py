"""The stock clients that we test against, one class each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.interop import building
from tests.interop.building import CACHE, JAVA_4, JAVA_5
from tests.interop.peer import Ability, Peer

CLIENT_HOME = CACHE / "home"

JAVA_ABILITIES = frozenset(Ability)
#: This client is older than the timer and the pop model of 5.x.
JAVA_4_ABILITIES = JAVA_ABILITIES - {Ability.DELIVER_TIME, Ability.POP}

#: Little memory and a quick start, because scenarios are short.
SMALL = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: For benchmarks: with the optimizing compiler.
LARGE = ("-Xms512m", "-Xmx1g", "-XX:+UseParallelGC")


class JavaPeer(Peer):
    """org.apache.rocketmq:rocketmq-client, driven by ``peers/java``."""

    def __init__(
        self,
        version: str = JAVA_5,
        *,
        memory: tuple[str, ...] = SMALL,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.name = f"java-{version}"
        self.version = version
        self.abilities = JAVA_4_ABILITIES if version.startswith("4.") else JAVA_ABILITIES
        self._memory = memory
        #: System properties beside ours.
        self._options = options or {}

    def another(self) -> JavaPeer:
        return JavaPeer(self.version, memory=self._memory, options=self._options)

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        place = building.java_peer(self.version)
        # mqadmin 4.9 does not start without this file.
        logging = CLIENT_HOME / "conf" / "logback_tools.xml"
        logging.parent.mkdir(parents=True, exist_ok=True)
        logging.write_text('<configuration><root level="OFF"/></configuration>')
        options = {
            "logback.configurationFile": str(logging),
            "rocketmq.client.version": self.version,
            "rocketmq.client.logRoot": str(CACHE / "logs"),
            "rocketmq.client.logLevel": "WARN",
            "rocketmq.client.localOffsetStoreDir": str(CLIENT_HOME / "offsets"),
            # The default is 20 seconds, and a first retry would wait that long.
            "rocketmq.client.rebalance.waitInterval": "2000",
            # Its logs go under the home directory, whatever the other options say.
            "user.home": str(CLIENT_HOME),
            **self._options,
        }
        return [
            building.java(),
            *self._memory,
            # By default only the thread that needs memory ends, and its command is never answered.
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:+DisplayVMOutputToStderr",
            *(f"-D{name}={value}" for name, value in options.items()),
            "-cp",
            f"{place / 'classes'}:{place / 'lib'}/*",
            "escrowmq.interop.Main",
        ], {"ROCKETMQ_HOME": str(CLIENT_HOME)}

    def mqadmin_by_id(self, name_server: str, topic: str, message_id: str) -> str:
        if self.version.startswith("4."):
            # This version does not accept a topic here; later ones require it.
            return self.mqadmin("queryMsgById", "-n", name_server, "-i", message_id)
        return super().mqadmin_by_id(name_server, topic, message_id)


class GoPeer(Peer):
    """github.com/apache/rocketmq-client-go/v2, driven by ``peers/go``."""

    name = "go"
    abilities = frozenset(
        {
            Ability.SEND,
            Ability.ASYNC,
            Ability.BATCH,
            Ability.QUEUE_SELECTOR,
            Ability.DELAY_LEVEL,
            Ability.TRANSACTION,
            Ability.PUSH,
            Ability.ORDERLY,
            Ability.BROADCAST,
            Ability.TRACE,
        }
    )

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        return [str(building.go_peer() / "driver")], {
            "HOME": str(CLIENT_HOME),
            "ROCKETMQ_GO_LOG_LEVEL": "warn",
        }


class WheelPeer(Peer):
    """PyPI's rocketmq 0.4.4, the C++ client of 2018 behind ctypes, driven by ``peers/cpp_wheel``.

    It exports no transactions. Its batch is not one: a broker sees a single message whose body is
    the encoded batch. It shows a received body only up to the first zero byte.
    """

    name = "cpp-wheel"
    abilities = frozenset(
        {
            Ability.SEND,
            Ability.ASYNC,
            Ability.QUEUE_SELECTOR,
            Ability.DELAY_LEVEL,
            Ability.PUSH,
            Ability.ORDERLY,
            Ability.BROADCAST,
            Ability.PULL_ALL,
        }
    )

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        driver = Path(__file__).parent / "peers" / "cpp_wheel" / "driver.py"
        python = building.wheel_peer() / "bin" / "python"
        return [str(python), "-u", str(driver)], {"HOME": str(CLIENT_HOME)}


def every_peer() -> tuple[Peer, ...]:
    """Return one peer of each kind."""
    return JavaPeer(JAVA_4), JavaPeer(JAVA_5), GoPeer(), WheelPeer()
