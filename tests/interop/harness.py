"""Stock clients, a stock broker and ours, for tests and benchmarks.

    with ApacheRocketMQ() as broker, JavaPeer("5.5.0") as peer:
        broker.create_topic("orders")
        producer = peer.start_transaction_producer(broker.name_server, "payments")
        producer.send_in_transaction(Message(topic="orders", keys="7"), local=Answer.COMMIT)
        consumer = peer.start_push_consumer(broker.name_server, "shipping", "orders")
        (message,) = consumer.wait_for(1)

A peer is a process that runs clients as their makers ship them. ``scenarios`` has the promises that
are tested with it: ``test_scenarios`` on our broker, ``selfcheck`` on Apache's. Everything is built
on first use, ends with the process that started it, and raises a named error if a tool is missing.
"""

from __future__ import annotations

from tests.interop.apache import ApacheRocketMQ
from tests.interop.building import JAVA_4, JAVA_5
from tests.interop.child import Usage
from tests.interop.clients import (
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from tests.interop.errors import (
    BuildFailed,
    InteropError,
    PeerRefused,
    ProcessDied,
    ToolMissing,
    WaitedInVain,
)
from tests.interop.escrow import Escrow, quick_escrow
from tests.interop.peer import Ability, Peer
from tests.interop.scenario import SCENARIOS, Broker, Scenario, scenarios_for
from tests.interop.scenarios import (
    administering,
    consuming,
    looking,
    popping,
    sending,
    transactions,
)
from tests.interop.stock import GoPeer, JavaPeer, WheelPeer, every_peer
from tests.interop.values import Answer, FromWhere, Message, Model, Received, Sent, sleep_then

#: Importing these modules registers their scenarios.
SCENARIO_MODULES = (administering, consuming, looking, popping, sending, transactions)

__all__ = [
    "JAVA_4",
    "JAVA_5",
    "SCENARIOS",
    "Ability",
    "Answer",
    "ApacheRocketMQ",
    "Broker",
    "BuildFailed",
    "Escrow",
    "FromWhere",
    "GoPeer",
    "InteropError",
    "JavaPeer",
    "LitePullConsumer",
    "Message",
    "Model",
    "Peer",
    "PeerRefused",
    "ProcessDied",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Received",
    "Scenario",
    "Sent",
    "ToolMissing",
    "TransactionProducer",
    "Usage",
    "WaitedInVain",
    "WheelPeer",
    "every_peer",
    "quick_escrow",
    "scenarios_for",
    "sleep_then",
]
