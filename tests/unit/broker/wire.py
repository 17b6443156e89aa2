"""A broker on a real socket, and a peer that speaks its protocol."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from escrowmq.broker.config import BrokerConfig, TlsConfig, TopicsConfig, WriterConfig
from escrowmq.broker.periodic.backup_schedule import BackupConfig
from escrowmq.broker.server import Server
from escrowmq.broker.watch.alert_config import AlertsConfig
from escrowmq.model.catalog import Topic
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.protocol.message.ids import format_address
from escrowmq.protocol.message.stored_message import StoredMessage, decode
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.frames import FrameSplitter, RemotingFrame, encode_request
from escrowmq.protocol.remoting.headers import Header, read_fields
from escrowmq.protocol.remoting.send_headers import EndTransactionHeader, SendHeader
from escrowmq.store.config import StoreConfig
from escrowmq.store.reading.reader import ReadStatus
from escrowmq.testing.calls import accepted
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.policy import CheckPolicy

DEADLINE_S = 20
T0 = 1_700_000_000_000
#: Small, because each broker allocates an eighth of it as its reserve file.
FREE_BYTES_MIN = 1024 * 1024
BACKUP_COMMAND = (sys.executable, "-m", "escrowmq.cli.data.backup_job")
LOOK_UP_COMMAND = (sys.executable, "-m", "escrowmq.look_up.child")
LOOPBACK = BrokerConfig(port=0, name_port=0, grpc_port=-1)


async def make_topic(server: Server, name: str, queues: int = 1, **fields: int) -> None:
    """Make or change a topic."""
    broker = server.broker
    counts = {"read_queue_count": queues, "write_queue_count": queues}
    topic = msgspec.convert({"name": name, **counts, **fields}, Topic)
    accepted(await broker.writer.submit(broker.topics.put(topic)))


#: Peers whose connection is still open.
_peers: set[Peer] = set()


class Peer:
    """One connection to a broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._splitter = FrameSplitter()
        self._opaque = count(1)
        #: Received frames that no call has taken yet.
        self.kept: list[RemotingFrame] = []

    @classmethod
    async def to(cls, address: str, tls: ssl.SSLContext | None = None) -> Peer:
        """Connect to a broker."""
        host, _, port = address.rpartition(":")
        peer = cls(*await asyncio.open_connection(host, int(port), ssl=tls))
        _peers.add(peer)
        return peer

    async def ask(
        self, code: int, header: Header | None = None, body: bytes = b"", *, is_binary: bool = False
    ) -> RemotingFrame:
        """Send a request and return its answer; keep the frames that arrive before it."""
        opaque = next(self._opaque)
        self.write(encode_request(code, opaque, header=header, body=body, is_binary=is_binary))
        return await self.until(lambda frame: frame.is_response and frame.opaque == opaque)

    def tell(self, code: int, header: Header | None = None, body: bytes = b"") -> None:
        """Send a one-way request."""
        self.write(encode_request(code, 0, header=header, body=body, is_one_way=True))

    @property
    def address(self) -> str:
        """Address of this peer as the broker sees it."""
        return format_address(*self._writer.get_extra_info("sockname")[:2])

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    async def until(self, is_wanted: Callable[[RemotingFrame], bool]) -> RemotingFrame:
        """Return the first frame that is wanted."""
        while True:
            for at, frame in enumerate(self.kept):
                if is_wanted(frame):
                    return self.kept.pop(at)
            data = await asyncio.wait_for(self._reader.read(65_536), DEADLINE_S)
            if not data:
                raise ConnectionResetError
            self.kept += self._splitter.feed(data)

    async def read(self, size: int) -> None:
        """Read and drop this many bytes."""
        async with asyncio.timeout(DEADLINE_S):
            while size > 0:
                size -= len(await self._reader.read(min(size, 1024 * 1024)))

    async def is_cut(self) -> bool:
        """Wait until the broker closes the connection."""
        try:
            while await asyncio.wait_for(self._reader.read(65_536), DEADLINE_S):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def closed(self) -> None:
        """Close the connection and wait until it is closed."""
        self._writer.close()
        _peers.discard(self)
        # With TLS, a refusal of the broker comes to light here.
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@asynccontextmanager
async def serving(
    data: Path,
    clock: ManualClock | None = None,
    **changes: Any,  # noqa: ANN401 - fields of config sections
) -> AsyncIterator[Server]:
    """Run a broker; keyword arguments change fields of its config sections."""
    sections: dict[str, Any] = {
        "broker": LOOPBACK,
        "store": StoreConfig(free_bytes_min=FREE_BYTES_MIN),
        # The tests send verdicts themselves; a test of the broker's own checks says so.
        "policy": CheckPolicy(checked_by="pipeline"),
        "topics": TopicsConfig(),
        "writer": WriterConfig(),
        "limits": LimitsConfig(),
        "alerts": AlertsConfig(),
        "backup": BackupConfig(),
        "tls": TlsConfig(),
    }
    ledgers, secrets = changes.pop("ledgers", None), changes.pop("secrets", None)
    access = changes.pop("access", None)
    for name, fields in changes.items():
        sections[name] = replace(sections[name], **fields)
    server = Server(
        data,
        clock or ManualClock(T0),
        **sections,
        backup_command=BACKUP_COMMAND,
        ledgers=ledgers,
        look_up_command=LOOK_UP_COMMAND,
        secrets=secrets,
        access=access,
    )
    await server.start()
    try:
        yield server
    finally:
        while _peers:
            await _peers.pop().closed()
        await server.stop()


def clock_of(server: Server) -> ManualClock:
    """Return the clock of the broker's machine."""
    clock = server._clock
    assert isinstance(clock, ManualClock)
    return clock


async def eventually(is_so: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - the broker sets no event for tests
            await asyncio.sleep(0.001)


def sending(
    topic: str = "orders",
    properties: dict[str, str] | None = None,
    **fields: Any,  # noqa: ANN401 - fields of the header
) -> SendHeader:
    """Return the header of a message as a stock client sends it."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
    values: dict[str, Any] = {
        "producer_group": "pay",
        "topic": topic,
        "default_topic": "TBW102",
        "default_queue_count": 4,
        "queue_id": 1,
        "sys_flag": 0,
        "born_at_ms": T0 - 5,
        "flag": 7,
        "properties": text,
        **fields,
    }
    return SendHeader(**values)


def half(key: str, **properties: str) -> SendHeader:
    """Return the header of a half message."""
    return sending(
        properties={"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "pay", **properties}, sys_flag=4
    )


def ending(answer: RemotingFrame, bits: int, **fields: Any) -> EndTransactionHeader:  # noqa: ANN401
    """Return the request that ends a half message with this answer."""
    sent = facts(answer)
    values: dict[str, Any] = {
        "topic": "orders",
        "producer_group": "pay",
        "half_offset": int(sent["queueOffset"]),
        "log_offset": int(sent["msgId"][16:], 16),
        "resolution_bits": bits,
        "unique_key": sent.get("transactionId", ""),
        **fields,
    }
    return EndTransactionHeader(**values)


def facts(answer: RemotingFrame) -> dict[str, str]:
    """Return the fields of an answer."""
    return read_fields(answer.ext)


def visible(server: Server, topic: str = "orders", queue_id: int = 1) -> list[StoredMessage]:
    """Return the messages that consumers of a queue can see."""
    pulled = server.broker.reader.pull(topic, queue_id, 0, count_max=1_000, bytes_max=2**24)
    return [decode(one) for one in pulled.messages] if pulled.status is ReadStatus.FOUND else []


SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION
COMMIT = 0x8
ROLLBACK = 0xC
UNKNOWN = 0x0
