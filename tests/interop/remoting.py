"""The remoting requests that the harness itself sends, apart from any client."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tests.interop.certificates import Certificates
from tests.interop.errors import Diverged, WaitedInVain

TIMEOUT_S = 10
POLL_S = 0.02
JSON_HEADER_MASK = 0xFFFFFF

PULL_MESSAGE = 11
UPDATE_AND_CREATE_TOPIC = 17
GET_ROUTE_INFO_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106
UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 200
RESUME_CHECK_HALF_MESSAGE = 323
SUCCESS = 0
#: The flag of a pull that carries its own filter.
HAS_SUBSCRIPTION = 4
PULLED_MAX = 32

Found = TypeVar("Found")

_opaque = itertools.count(1)
#: TLS of the requests; none without an entry.
_contexts: list[ssl.SSLContext | None] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A request or a response with a JSON header."""

    code: int
    #: All values are strings, except that the C++ client also writes bare numbers.
    fields: Mapping[str, object] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: str = "JAVA"
    version: int = 0

    def encode(self) -> bytes:
        header = json.dumps(
            {
                "code": self.code,
                "language": self.language,
                "version": self.version,
                "opaque": self.opaque,
                "flag": self.flag,
                "remark": self.remark,
                "extFields": self.fields,
                "serializeTypeCurrentRPC": "JSON",
            }
        ).encode()
        return (
            struct.pack(">II", 4 + len(header) + len(self.body), len(header)) + header + self.body
        )

    @classmethod
    def decode(cls, data: bytes) -> Frame:
        """Decode the bytes after the length."""
        (mark,) = struct.unpack_from(">I", data)
        size = mark & JSON_HEADER_MASK
        header = json.loads(data[4 : 4 + size])
        return cls(
            code=header["code"],
            fields=header.get("extFields") or {},
            body=data[4 + size :],
            remark=header.get("remark"),
            opaque=header["opaque"],
            flag=header["flag"],
            language=header["language"],
            version=header["version"],
        )


def request(
    address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
) -> Frame:
    """Send one request on its own connection."""
    host, _, port = address.rpartition(":")
    with _connected(host, int(port)) as connection:
        frame = Frame(code=code, fields=fields or {}, body=body, opaque=next(_opaque))
        connection.sendall(frame.encode())
        (size,) = struct.unpack(">I", read_exactly(connection, 4))
        return Frame.decode(read_exactly(connection, size))


@contextmanager
def secured(certificates: Certificates | None) -> Iterator[None]:
    """Send requests over TLS, with a client's certificate; None: without TLS."""
    context = None
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(certificates.ca_file)
        context.load_cert_chain(certificates.client_file, certificates.client_key_file)
    _contexts.append(context)
    try:
        yield
    finally:
        _contexts.remove(context)


def _connected(host: str, port: int) -> socket.socket:
    plain = socket.create_connection((host, port), TIMEOUT_S)
    context = _contexts[-1] if _contexts else None
    return plain if context is None else context.wrap_socket(plain, server_hostname=host)


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the other side closed")
        data += part
    return bytes(data)


def brokers(name_server: str, *, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Return the addresses of all masters that the name server knows; wait for the first."""

    def known() -> list[str]:
        answer = request(name_server, GET_BROKER_CLUSTER_INFO)
        table = json.loads(_standard(answer.body)).get("brokerAddrTable") or {}
        # A starting broker may be listed before its address is.
        masters = (data["brokerAddrs"].get("0") for data in table.values())
        return [address for address in masters if address]

    return _until(known, f"broker at {name_server}", timeout_s)


def create_topic(name_server: str, topic: str, queues: int, kind: str = "NORMAL") -> None:
    """Create a topic on every broker; return when the name server tells clients about it.

    5.x clients may send only the messages that its ``kind`` allows.
    """
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        **({"attributes": f"+message.type={kind}"} if kind != "NORMAL" else {}),
    }
    for address in brokers(name_server):
        done(request(address, UPDATE_AND_CREATE_TOPIC, fields))
    _until(
        lambda: request(name_server, GET_ROUTE_INFO_BY_TOPIC, {"topic": topic}).code == SUCCESS,
        f"route of {topic}",
        TIMEOUT_S,
    )


def create_group(address: str, group: str, *, retries_max: int, is_orderly: bool = False) -> None:
    """Create a consumer group with this limit of retries; an orderly one pops in order."""
    fields = {
        "groupName": group,
        "retryMaxTimes": retries_max,
        "consumeMessageOrderly": is_orderly,
    }
    body = json.dumps(fields).encode()
    done(request(address, UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=body))


def resume(address: str, topic: str, offset_message_id: str) -> None:
    """Resume the back-checks of a parked transaction."""
    fields = {"topic": topic, "msgId": offset_message_id}
    done(request(address, RESUME_CHECK_HALF_MESSAGE, fields))


def pull_all(address: str, topic: str, queue: int = 0) -> bytes:
    """Return all messages of a queue in their stored form."""
    found, offset = b"", 0
    while True:
        fields = {
            "consumerGroup": "harness",
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": str(PULLED_MAX),
            "sysFlag": str(HAS_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        answer = request(address, PULL_MESSAGE, fields)
        if answer.code != SUCCESS:
            return found
        found += answer.body
        offset = int(str(answer.fields["nextBeginOffset"]))


def done(answer: Frame) -> None:
    if answer.code != SUCCESS:
        raise Diverged(f"refused: {answer.code} {answer.remark}")


def _until(look: Callable[[], Found], what: str, timeout_s: float) -> Found:
    """Poll until the answer is not empty, because a name server pushes no event."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise WaitedInVain(what, timeout_s, [])
        threading.Event().wait(POLL_S)
    return found


def _standard(body: bytes) -> str:
    """Quote the bare numbers that the Java name server writes as keys."""
    return body.decode().replace("{0:", '{"0":')
