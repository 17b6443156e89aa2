"""RocketMQ's own 5.x Python client, driven by JSON lines.

It runs in its own environment, without our code. Each line on standard input is a command with an
id; each line on standard output is the answer to one, or an unsolicited event. The process ends
when its input ends.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

Fields = dict[str, Any]

THREADS = 32
RESOLUTIONS = {
    "commit": TransactionResolution.COMMIT,
    "rollback": TransactionResolution.ROLLBACK,
    "unknown": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


class Wire:
    """The output. A library may print, so our lines go to a duplicate of standard output."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def write(self, line: Fields) -> None:
        with self._lock:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()


def outgoing(fields: Fields) -> Message:
    message = Message()
    message.topic = fields["topic"]
    message.body = base64.b64decode(fields["body"])
    message.keys = fields["key"]
    if "tag" in fields:
        message.tag = fields["tag"]
    for name, value in fields["properties"].items():
        message.add_property(name, value)
    if "message_group" in fields:
        message.message_group = fields["message_group"]
    if "deliver_at_ms" in fields:
        # The client's unit is a second.
        message.delivery_timestamp = fields["deliver_at_ms"] // 1000
    return message


def view(message: Message) -> Fields:
    return {
        "message_id": message.message_id,
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "keys": sorted(message.keys),
        "tag": message.tag,
        "properties": message.properties,
        "message_group": message.message_group,
        "attempt": message.delivery_attempt,
    }


def sent(receipt: Any) -> Fields:  # noqa: ANN401 - the client has no types
    return {
        "message_id": receipt.message_id,
        "transaction_id": receipt.transaction_id or None,
        "recall_handle": receipt.recall_handle or None,
    }


class Script(TransactionChecker):  # type: ignore[misc]
    """Answers checks as it was told, key by key."""

    def __init__(self, client: str, wire: Wire) -> None:
        self._client = client
        self._wire = wire
        self.answers: dict[str, list[str]] = {}
        self._asked: Counter[str] = Counter()

    def check(self, message: Message) -> TransactionResolution:
        """Give the scripted answer; the last one is repeated."""
        (key,) = message.keys
        self._asked[key] += 1
        number = self._asked[key]
        facts = {"client": self._client, "number": number, "view": view(message)}
        self._wire.write({"event": "asked", **facts})
        answers = self.answers.get(key) or ["unknown"]
        return RESOLUTIONS[answers[min(number, len(answers)) - 1]]


class Listener(MessageListener):  # type: ignore[misc]
    """Refuses a key as often as it was told, then accepts it; never returns if told -1."""

    def __init__(self, client: str, wire: Wire, fail: dict[str, int]) -> None:
        self._client = client
        self._wire = wire
        self._left: Counter[str] = Counter(fail)
        self._lock = threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        """Report the message."""
        (key,) = message.keys
        with self._lock:
            refused, hangs = self._left[key] > 0, self._left[key] < 0
            self._left[key] -= refused
        accepted = not (refused or hangs)
        facts = {"client": self._client, "accepted": accepted, "view": view(message)}
        self._wire.write({"event": "shown", **facts})
        if hangs:
            threading.Event().wait()
        return ConsumeResult.FAILURE if refused else ConsumeResult.SUCCESS


class Driver:
    """The clients, and a method for each command."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._clients: dict[str, Any] = {}
        self._scripts: dict[str, Script] = {}
        self._received: dict[str, Message] = {}

    def start_producer(self, command: Fields) -> Fields:
        script = self._scripts[command["client"]] = Script(command["client"], self._wire)
        topics = command["topics"]
        tls = command["tls"]
        return self._start(
            command, Producer(configuration(command), topics, checker=script, tls_enable=tls)
        )

    def start_simple_consumer(self, command: Fields) -> Fields:
        consumer = SimpleConsumer(
            configuration(command),
            command["group"],
            subscription(command),
            command["wait_ms"] // 1000,
            tls_enable=command["tls"],
        )
        return self._start(command, consumer)

    def start_push_consumer(self, command: Fields) -> Fields:
        consumer = PushConsumer(
            configuration(command),
            command["group"],
            Listener(command["client"], self._wire, command["fail"]),
            subscription(command),
            tls_enable=command["tls"],
        )
        return self._start(command, consumer)

    def send(self, command: Fields) -> Fields:
        return sent(self._clients[command["client"]].send(outgoing(command["message"])))

    def script(self, command: Fields) -> Fields:
        self._scripts[command["client"]].answers[command["key"]] = command["checks"]
        return {}

    def send_in_transaction(self, command: Fields) -> Fields:
        producer = self._clients[command["client"]]
        transaction = producer.begin_transaction()
        receipt = producer.send(outgoing(command["message"]), transaction)
        if command["then"] == "commit":
            transaction.commit()
        elif command["then"] == "rollback":
            transaction.rollback()
        return sent(receipt)

    def recall(self, command: Fields) -> Fields:
        producer = self._clients[command["client"]]
        return {"message_id": producer.recall_message(command["topic"], command["recall_handle"])}

    def receive(self, command: Fields) -> Fields:
        consumer = self._clients[command["client"]]
        found = consumer.receive(command["max"], command["invisible_ms"] // 1000)
        rows = []
        for message in found:
            handle = str(len(self._received))
            self._received[handle] = message
            rows.append({"handle": handle, "view": view(message)})
        return {"messages": rows}

    def ack(self, command: Fields) -> Fields:
        self._clients[command["client"]].ack(self._received[command["handle"]])
        return {}

    def change_invisible(self, command: Fields) -> Fields:
        message = self._received[command["handle"]]
        seconds = command["invisible_ms"] // 1000
        self._clients[command["client"]].change_invisible_duration(message, seconds)
        return {}

    def stop(self, command: Fields) -> Fields:
        self._clients.pop(command["client"]).shutdown()
        return {}

    def _start(self, command: Fields, client: Any) -> Fields:  # noqa: ANN401 - the same
        client.startup()
        self._clients[command["client"]] = client
        return {"client_id": client.client_id}


def configuration(command: Fields) -> ClientConfiguration:
    return ClientConfiguration(command["endpoints"], Credentials(), request_timeout=10)


def subscription(command: Fields) -> dict[str, FilterExpression]:
    return {command["topic"]: FilterExpression(command["expression"])}


def answer(driver: Driver, wire: Wire, command: Fields) -> None:
    try:
        done = {"ok": getattr(driver, command["do"])(command)}
    except Exception as problem:  # noqa: BLE001 - the test judges it
        code = getattr(problem, "code", None)
        facts = {"type": type(problem).__name__, "message": str(problem)}
        done = {"error": {**facts, "code": code if isinstance(code, int) else None}}
    wire.write({"id": command["id"], **done})


def main() -> None:
    """Run commands until the input ends."""
    wire = Wire()
    driver = Driver(wire)
    wire.write({"event": "ready", "version": version("rocketmq-python-client")})
    with ThreadPoolExecutor(THREADS) as workers:
        for line in sys.stdin:
            workers.submit(answer, driver, wire, json.loads(line))
        # A client that waits for messages would hold up an orderly end.
        os._exit(0)


if __name__ == "__main__":
    main()
