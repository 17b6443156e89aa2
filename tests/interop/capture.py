"""Record what stock clients and Apache's broker send to each other, as data for our tests.

    python -m tests.interop.capture

Each kind of request gets a file in ``captures``: for each client and each action, the first
exchange of that kind, verbatim except for what names the recording machine. Text bodies are stored
as text, since some are not valid JSON; the others are stored as base64.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.harness import (
    JAVA_4,
    JAVA_5,
    Ability,
    Answer,
    ApacheRocketMQ,
    GoPeer,
    JavaPeer,
    Message,
    Model,
    Peer,
    Producer,
    WheelPeer,
)
from tests.interop.remoting import Frame
from tests.interop.selfcheck import quick_apache
from tests.interop.tap import Exchange, Tap

CAPTURES = Path(__file__).parent / "captures"
#: The address that the broker advertises, where the tap listens instead of the broker.
TAPPED_HOST = "127.0.0.2"

CODES = {
    10: "send_message",
    11: "pull_message",
    12: "query_message",
    14: "query_consumer_offset",
    15: "update_consumer_offset",
    17: "update_and_create_topic",
    28: "broker_runtime_info",
    29: "search_offset_by_timestamp",
    30: "max_offset",
    31: "min_offset",
    32: "earliest_stored_time",
    33: "view_message_by_id",
    34: "heartbeat",
    35: "unregister_client",
    36: "consumer_send_back",
    37: "end_transaction",
    38: "consumer_list",
    39: "check_transaction_state",
    40: "notify_consumer_ids_changed",
    41: "lock_batch_mq",
    42: "unlock_batch_mq",
    46: "check_client_config",
    105: "route_info",
    106: "cluster_info",
    200: "update_subscription_group",
    202: "topic_stats",
    203: "consumer_connection",
    204: "producer_connection",
    206: "topic_list",
    207: "subscription_group_config",
    208: "consume_stats",
    215: "delete_topic_in_broker",
    216: "delete_topic_in_name_server",
    220: "reset_consumer_client_offset",
    221: "consumer_status_from_client",
    222: "invoke_broker_to_reset_offset",
    300: "query_topic_consume_by_who",
    307: "consumer_running_info",
    310: "send_message_v2",
    320: "send_batch_message",
    351: "topic_config",
    361: "lite_pull_message",
}


class Session:
    """Two taps, and a label for the current action."""

    def __init__(self, taps: tuple[Tap, Tap]) -> None:
        self.taps = taps
        self.name_server = taps[0].address

    @contextmanager
    def doing(self, peer: Peer, what: str) -> Iterator[None]:
        for tap in self.taps:
            tap.label = f"{peer.name}: {what}"
        yield


def run(broker: ApacheRocketMQ, session: Session, peer: Peer) -> None:
    """Run everything that a peer can do, once."""
    name = slug(peer)
    topic = f"orders-{name}"
    broker.create_topic(topic, queues=2)
    with session.doing(peer, "producer"):
        producer = peer.start_producer(session.name_server, f"senders-{name}")
        sent = producer.send(
            Message(topic=topic, keys="key-1", tags="paid", properties={"colour": "red"})
        )
        for queue in (0, 1):
            producer.send_to_queue(Message(topic=topic, keys=f"key-{queue}"), queue)
    if Ability.BATCH in peer.abilities:
        with session.doing(peer, "batch"):
            producer.send_batch([Message(topic=topic, keys=f"batch-{n}") for n in range(2)])
    if Ability.TRANSACTION in peer.abilities:
        with session.doing(peer, "transaction"):
            transactions = peer.start_transaction_producer(session.name_server, f"payments-{name}")
            transactions.send_in_transaction(
                Message(topic=topic, keys="tx-1"), local=Answer.UNKNOWN, checks=[Answer.COMMIT]
            )
            transactions.wait_for_check("tx-1")
            transactions.send_in_transaction(Message(topic=topic, keys="tx-2"), local=Answer.COMMIT)
    consume(session, peer, topic, producer)
    if Ability.MQADMIN in peer.abilities:
        assert sent.message_id is not None
        assert sent.offset_message_id is not None
        administer(session, peer, topic, sent.message_id, sent.offset_message_id)
    with session.doing(peer, "goodbye"):
        producer.stop()


def consume(session: Session, peer: Peer, topic: str, producer: Producer) -> None:
    group = f"readers-{slug(peer)}"
    with session.doing(peer, "push consumer"):
        push = peer.start_push_consumer(session.name_server, group, topic, fail={"key-1": 1})
        push.wait_for(3)
        push.wait_for(1, lambda message: message.reconsume_times > 0, timeout_s=90)
    with session.doing(peer, "second member"):
        second = peer.start_push_consumer(session.name_server, group, topic)
        second.stop()
    with session.doing(peer, "orderly consumer"):
        orderly = peer.start_push_consumer(
            session.name_server, f"{group}-orderly", topic, orderly=True
        )
        orderly.wait_for(3)
        orderly.stop()
    with session.doing(peer, "broadcast consumer"):
        broadcast = peer.start_push_consumer(
            session.name_server, f"{group}-all", topic, model=Model.BROADCASTING
        )
        # The wheel's consumer starts at the end of the queue.
        producer.send(Message(topic=topic, keys="news"))
        broadcast.wait_for(1)
        broadcast.stop()
    if Ability.PULL in peer.abilities:
        with session.doing(peer, "pull consumer"):
            pull = peer.start_pull_consumer(session.name_server, f"{group}-pull")
            pull.pull(topic, 0, 0)
            pull.offsets(topic, 0, at_ms=0)
            pull.stop()
    if Ability.LITE_PULL in peer.abilities:
        with session.doing(peer, "lite pull consumer"):
            lite = peer.start_lite_pull_consumer(
                session.name_server, f"{group}-lite", topic, assign=True
            )
            lite.poll(20_000)
            lite.commit()
            lite.stop()


def administer(session: Session, peer: Peer, topic: str, message_id: str, offset_id: str) -> None:
    group = f"readers-{slug(peer)}"
    payments = f"payments-{slug(peer)}"
    commands = [
        ("topicList",),
        ("topicRoute", "-t", topic),
        ("topicStatus", "-t", topic),
        ("topicClusterList", "-t", topic),
        ("consumerProgress", "-g", group),
        ("consumerConnection", "-g", group),
        ("consumerStatus", "-g", group),
        ("producerConnection", "-g", payments, "-t", topic),
        ("queryMsgByKey", "-t", topic, "-k", "key-1"),
        ("queryMsgByUniqueKey", "-t", topic, "-i", message_id),
        ("brokerStatus", "-c", "DefaultCluster"),
        ("updateTopic", "-c", "DefaultCluster", "-t", f"{topic}-new", "-r", "2", "-w", "2"),
        ("updateSubGroup", "-c", "DefaultCluster", "-g", f"{group}-new"),
        ("deleteTopic", "-c", "DefaultCluster", "-t", f"{topic}-new"),
        ("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0"),
    ]
    if peer.name != f"java-{JAVA_4}":  # Version 4's mqadmin cannot read this broker's answer.
        commands.append(("clusterList",))
    for name, *options in commands:
        with session.doing(peer, f"mqadmin {name}"):
            peer.mqadmin(name, "-n", session.name_server, *options)
    with session.doing(peer, "mqadmin queryMsgById"):
        peer.mqadmin_by_id(session.name_server, topic, offset_id)


def frame_json(frame: Frame | None, clean: Callable[[str], str]) -> dict[str, Any] | None:
    if frame is None:
        return None
    facts: dict[str, Any] = {
        "code": frame.code,
        "language": frame.language,
        "version": frame.version,
        "flag": frame.flag,
        "remark": frame.remark and clean(frame.remark),
        "fields": {
            name: clean(value) if isinstance(value, str) else value
            for name, value in sorted(frame.fields.items())
        },
    }
    # Stored messages contain zero bytes, and JSON does not.
    if b"\0" in frame.body:
        facts["body_base64"] = base64.b64encode(frame.body).decode()
    else:
        facts["body"] = clean(frame.body.decode())
    return facts


def write(exchanges: list[Exchange], clean: Callable[[str], str]) -> None:
    """Write one file per kind, with the first successful exchange of each action."""
    kinds: defaultdict[int, dict[str, Exchange]] = defaultdict(dict)
    for one in exchanges:
        if one.request.version == 0:
            continue  # The harness's own request to create a topic.
        known = kinds[one.request.code]
        before = known.get(one.label)
        if before is None or (before.response and before.response.code and one.response):
            known[one.label] = one
    for old in CAPTURES.glob("*.json"):
        old.unlink()
    for code, known in sorted(kinds.items()):
        found = [exchange_json(one, clean) for _, one in sorted(known.items())]
        text = json.dumps(
            {"code": code, "exchanges": differing(found)}, indent=1, ensure_ascii=False
        )
        name = CODES.get(code, f"request_{code}")
        (CAPTURES / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def exchange_json(one: Exchange, clean: Callable[[str], str]) -> dict[str, Any]:
    return {
        "by": one.label,
        "server": one.server,
        "from": "client" if one.from_client else "server",
        "request": frame_json(one.request, clean),
        "response": frame_json(one.response, clean),
    }


def differing(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop the exchanges that differ from an earlier one only in numbers."""
    shapes: dict[str, dict[str, Any]] = {}
    for one in found:
        said = json.dumps([one["from"], one["request"], one["response"]])
        shapes.setdefault(re.sub(r"[0-9A-F]+", "0", said), one)
    return list(shapes.values())


def cleaner(broker: ApacheRocketMQ) -> Callable[[str], str]:
    """Return a function that removes this machine's addresses and store path from a text."""
    address = re.compile(
        r"(?<![\w.:])(?:(?!127\.)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|[0-9a-f:]*::[0-9a-f:]*(?=@))"
    )

    def clean(text: str) -> str:
        return address.sub("127.0.0.1", text).replace(str(broker.home), "/rocketmq")

    return clean


def main() -> None:
    with (
        quick_apache(advertised_host=TAPPED_HOST) as broker,
        Tap("name server", (TAPPED_HOST, 0), address_of(broker.name_server)) as names,
        Tap(
            "broker",
            (TAPPED_HOST, address_of(broker.broker_address)[1]),
            address_of(broker.broker_address),
        ) as messages,
    ):
        session = Session((names, messages))
        peers: tuple[Peer, ...] = (JavaPeer(JAVA_5), JavaPeer(JAVA_4), GoPeer(), WheelPeer())
        for one in peers:
            with one as peer:
                run(broker, session, peer)
        write(names.exchanges + messages.exchanges, cleaner(broker))


def slug(peer: Peer) -> str:
    """Return the peer's name without dots, which names may not contain."""
    return peer.name.replace(".", "-")


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main()
