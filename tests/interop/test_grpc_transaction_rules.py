"""The rules that the official Python client applies to a transaction, against our broker."""

from __future__ import annotations

import json
import os
import subprocess
from typing import NamedTuple

import pytest

from tests.interop import building
from tests.interop.escrow import Escrow
from tests.interop.grpc_clients.peers import GrpcPeer, Python5Peer
from tests.interop.scenario import fresh

TIMEOUT_S = 60
REFUSED = "IllegalArgumentException"
#: Prints one JSON line: the outcome of each step, by name.
PROGRAM = """
import json, sys
from rocketmq import ClientConfiguration, Credentials, Message, Producer
from rocketmq import TransactionChecker, TransactionResolution

class Unsure(TransactionChecker):
    def check(self, message):
        return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED

def message(body):
    made = Message()
    made.topic, made.body, made.keys = topic, body.encode(), body
    return made

def outcome(work, *arguments):
    try:
        work(*arguments)
    except Exception as error:
        return type(error).__name__
    return "ok"

endpoints, topic = sys.argv[1:]
settings = ClientConfiguration(endpoints, Credentials(), request_timeout=10)
producer = Producer(settings, [topic], checker=Unsure(), tls_enable=False)
producer.startup()
seen = {}
empty = producer.begin_transaction()
seen["commit of nothing"] = outcome(empty.commit)
seen["rollback of nothing"] = outcome(empty.rollback)
unsent = producer.begin_transaction()
unsent.add_half_message(message("unsent"))
seen["commit before a receipt"] = outcome(unsent.commit)
seen["rollback before a receipt"] = outcome(unsent.rollback)
kept = producer.begin_transaction()
seen["first message"] = outcome(producer.send, message("kept"), kept)
seen["second message"] = outcome(producer.send, message("second"), kept)
dropped = producer.begin_transaction()
other = producer.send(message("dropped"), dropped)
seen["another receipt"] = outcome(kept.add_send_receipt, other)
seen["commit"] = outcome(kept.commit)
seen["commit again"] = outcome(kept.commit)
seen["opposite"] = outcome(kept.rollback)
seen["rollback"] = outcome(dropped.rollback)
producer.shutdown()
print(json.dumps(seen))
"""


class Told(NamedTuple):
    """The program's output."""

    topic: str
    #: The outcome of each step: "ok", or the name of an error.
    steps: dict[str, str]


@pytest.fixture(scope="module")
def told(broker: Escrow) -> Told:
    """Run the program."""
    topic = fresh("rules")
    broker.create_topic(topic, 2, "TRANSACTION")
    python = building.python5_peer() / "bin" / "python"
    done = subprocess.run(
        [python, "-c", PROGRAM, broker.grpc_address, topic],
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": ""},
    )
    return Told(topic, json.loads(done.stdout.splitlines()[-1]))


def test_the_first_message_begins_a_transaction_and_a_second_one_is_refused(told: Told) -> None:
    assert (told.steps["first message"], told.steps["second message"]) == ("ok", REFUSED)


def test_only_the_receipt_of_its_message_fits_a_transaction(told: Told) -> None:
    assert (told.steps["first message"], told.steps["another receipt"]) == ("ok", REFUSED)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_end_before_a_receipt_is_refused(told: Told, end: str) -> None:
    assert told.steps[f"{end} of nothing"] == REFUSED
    assert told.steps[f"{end} before a receipt"] == REFUSED


def test_an_end_with_a_receipt_is_sent_and_the_opposite_one_is_an_error(
    broker: Escrow, told: Told
) -> None:
    assert [told.steps[end] for end in ("commit", "commit again", "rollback")] == ["ok"] * 3
    assert told.steps["opposite"] == "ClientException"
    with Python5Peer() as peer:
        assert received(broker, peer, told.topic) == ["kept"]


def received(broker: Escrow, peer: GrpcPeer, topic: str) -> list[str]:
    """Return the keys of all messages that a consumer can see."""
    consumer = peer.start_simple_consumer(broker.grpc_address, fresh("rules"), topic, wait_ms=2_000)
    found = [one.key for one in consumer.take(1)]
    return found + [taken.view.key for taken in consumer.receive()]
