"""The C++ client of 2018 in PyPI's wheel ``rocketmq``, driven by JSON lines.

It runs in its own environment, with that wheel and the standard library. Each line on standard
input is a command with an id; each line on standard output is the answer to one, or an unsolicited
event. The process ends when its input ends.

The library exports no transactional producer, so there is none here.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RecvMessage,
)
from rocketmq.consts import MessageProperty  # type: ignore[import-not-found]
from rocketmq.exceptions import (  # type: ignore[import-not-found]
    ProducerSendSyncFailed,
    ffi_check,
)
from rocketmq.ffi import MessageModel, dll  # type: ignore[import-not-found]

SEND_TIMEOUT_MS = 10_000
#: The wheel's own default.
RETRIES = 3
NO_ROUTE = "No route info"
SUCCESS, LATER = 0, 1
MODELS = {"CLUSTERING": MessageModel.CLUSTERING, "BROADCASTING": MessageModel.BROADCASTING}
#: The library reads a property only by its name; these are the names that tests use.
KNOWN_PROPERTIES = [
    *(one.value for one in MessageProperty),
    "__transactionId__",
    "CLUSTER",
    "colour",
]

Fields = dict[str, Any]


class Wire:
    """The output. The library may print, so our lines go to a duplicate of standard output."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def write(self, line: Fields) -> None:
        with self._lock:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()


def outgoing(fields: Fields) -> Message:
    message = Message(fields["topic"])
    body = base64.b64decode(fields["body"])
    # Pass the length: the wheel's own setter stops at the first zero byte.
    ffi_check(dll.SetByteMessageBody(message, body, len(body)))
    for name, value in fields.get("properties", {}).items():
        message.set_property(name, value)
    if "keys" in fields:
        message.set_keys(fields["keys"])
    if "tags" in fields:
        message.set_tags(fields["tags"])
    if "delay_level" in fields:
        message.set_delay_time_level(fields["delay_level"])
    return message


def received(message: RecvMessage) -> Fields:
    found = {name: text(message.get_property(name)) for name in KNOWN_PROPERTIES}
    return {
        "message_id": message.id,
        "offset_message_id": None,
        "topic": message.topic,
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "log_offset": message.commit_log_offset,
        "keys": text(message.keys),
        "tags": text(message.tags),
        "properties": {name: value for name, value in found.items() if value is not None},
        "body": base64.b64encode(message.body).decode(),
        "reconsume_times": message.reconsume_times,
        "stored_at_ms": message.store_timestamp,
        "born_at_ms": message.born_timestamp,
        "prepared_offset": message.prepared_transaction_offset,
        "sys_flag": None,
    }


def text(value: bytes | None) -> str | None:
    return value.decode() if value else None


def sent(result: Any) -> Fields:  # noqa: ANN401 - the wheel has no types
    status = "SEND_OK" if int(result.status) == 0 else result.status.name
    return {"status": status, "message_id": result.msg_id, "queue_offset": result.offset}


def send_sync(producer: Any, message: Message) -> Any:  # noqa: ANN401 - the same
    """Send, and retry once: a new client's first connection to a broker sometimes fails.

    The client then drops the queue, and reports that a topic with one queue has no route.
    """
    try:
        return producer.send_sync(message)
    except ProducerSendSyncFailed as problem:
        if NO_ROUTE not in str(problem):
            raise
        return producer.send_sync(message)


class Driver:
    """The clients, and a method for each command."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._clients: dict[str, Any] = {}
        self._retries: dict[str, int] = {}

    def start_producer(self, command: Fields) -> Fields:
        if command.get("transactional"):
            raise NotImplementedError("the library has no transactional producer")
        producer = Producer(command["group"], timeout=SEND_TIMEOUT_MS)
        instance = self._instance(command)
        ffi_check(dll.SetProducerInstanceName(producer._handle, instance.encode()))
        self._retries[command["client"]] = command.get("retries", RETRIES)
        return self._start(producer, command)

    def start_push_consumer(self, command: Fields) -> Fields:
        orderly = command["orderly"]
        consumer = PushConsumer(command["group"], orderly, MODELS[command["model"]])
        consumer.set_instance_name(self._instance(command))
        left: Counter[str] = Counter(command["fail"])

        def take(_consumer: int, handle: int) -> int:
            message = RecvMessage(handle)
            key = text(message.keys) or ""
            refused = left[key] > 0
            left[key] -= refused
            facts = {"client": command["client"], "accepted": not refused}
            self._wire.write({"event": "message", **facts, "message": received(message)})
            return LATER if refused else SUCCESS

        # Bypass the wheel's subscribe: ctypes reads its result for an exception as success.
        topic, expression = command["topic"].encode(), command["expression"].encode()
        ffi_check(dll.Subscribe(consumer._handle, topic, expression))
        consumer._register_callback(take)
        return self._start(consumer, command)

    def start_pull_consumer(self, command: Fields) -> Fields:
        return self._start(PullConsumer(command["group"]), command)

    def pull_all(self, command: Fields) -> Fields:
        consumer = self._clients[command["client"]]
        found = consumer.pull(command["topic"], command["expression"])
        return {"messages": [received(message) for message in found]}

    def send(self, command: Fields) -> Fields:
        producer = self._clients[command["client"]]
        messages = [outgoing(fields) for fields in command["messages"]]
        if len(messages) > 1:
            return sent(producer.send_batch(messages))
        message = messages[0]
        if "queue" in command:
            # The wheel's selector takes this argument modulo the number of queues.
            retries = self._retries[command["client"]]
            result = producer.send_orderly(message, command["queue"], retries)
            return {**sent(result), "queue": command["queue"]}
        if command.get("mode") == "oneway":
            producer.send_oneway(message)
            return {"status": "ONEWAY"}
        if command.get("mode") == "async":
            done: Future[Any] = Future()
            producer.send_async(message, done.set_result, done.set_exception)
            return sent(done.result(SEND_TIMEOUT_MS / 1000))
        return sent(send_sync(producer, message))

    def stop(self, command: Fields) -> Fields:
        self._clients.pop(command["client"]).shutdown()
        return {}

    def _instance(self, command: Fields) -> str:
        return f"{command['client']}-{os.getpid()}"

    def _start(self, client: Any, command: Fields) -> Fields:  # noqa: ANN401 - the same
        client.set_namesrv_addr(command["name_server"])
        client.start()
        self._clients[command["client"]] = client
        return {"client_id": self._instance(command)}


def answer(wire: Wire, run: Callable[[Fields], Fields], command: Fields) -> None:
    try:
        wire.write({"id": command["id"], "ok": run(command)})
    except Exception as problem:  # noqa: BLE001 - report every failure to the other side
        error = {"type": type(problem).__name__, "message": str(problem), "code": None}
        wire.write({"id": command["id"], "error": error})


def unknown(command: Fields) -> Fields:
    raise NotImplementedError(f"no command {command['do']}")


def main() -> None:
    wire = Wire()
    driver = Driver(wire)
    wire.write({"event": "ready", "version": version("rocketmq"), "pid": os.getpid()})
    for line in sys.stdin:
        command = json.loads(line)
        run = getattr(driver, command["do"], unknown)
        threading.Thread(target=answer, args=(wire, run, command), daemon=True).start()
    # The library's threads do not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
