"""Transactions, as a stock producer and a stock consumer see them."""

from __future__ import annotations

from tests.interop import remoting
from tests.interop.peer import Ability, Peer
from tests.interop.scenario import CHECKS_MAX, Broker, eventually, fresh, same, scenario
from tests.interop.values import COMMITTED_FLAG, Answer, Message

TRANSACTION_BITS = 0xC
PARKED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"


@scenario(Ability.TRANSACTION, Ability.PUSH)
def a_committed_transaction_is_delivered_as_it_was_sent(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("commit"), fresh("producers")
    broker.create_topic(topic)
    producer = peer.start_transaction_producer(broker.name_server, group)
    message = Message(
        topic=topic, body=b"paid", keys="order-1", tags="paid", properties={"colour": "red"}
    )
    sent = producer.send_in_transaction(message, local=Answer.COMMIT)
    assert sent.status == "SEND_OK"
    assert sent.local_state == "COMMIT_MESSAGE"
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    (found,) = consumer.wait_for(1)
    assert found.message_id == sent.message_id == sent.transaction_id
    assert (found.topic, found.body, found.keys, found.tags) == (topic, b"paid", "order-1", "paid")
    assert found.properties["colour"] == "red"
    assert found.properties["PGROUP"] == group
    assert found.properties["TRAN_MSG"] == "true"
    assert found.properties["__transactionId__"] == sent.transaction_id
    assert found.queue == sent.queue
    assert found.reconsume_times == 0
    assert found.sys_flag is None or found.sys_flag & TRANSACTION_BITS == COMMITTED_FLAG
    assert producer.checks("order-1") == []


@scenario(Ability.TRANSACTION, Ability.PUSH)
def a_rolled_back_transaction_is_not_delivered(broker: Broker, peer: Peer) -> None:
    topic = fresh("rollback")
    broker.create_topic(topic, queues=1)
    producer = peer.start_transaction_producer(broker.name_server, fresh("producers"))
    sent = producer.send_in_transaction(Message(topic=topic, keys="no"), local=Answer.ROLLBACK)
    assert sent.local_state == "ROLLBACK_MESSAGE"
    producer.send_in_transaction(Message(topic=topic, keys="yes"), local=Answer.COMMIT)
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    consumer.wait_for(1, lambda message: message.keys == "yes")
    same([message.keys for message in consumer.received()], ["yes"])


@scenario(Ability.TRANSACTION, Ability.PUSH)
def nothing_is_delivered_while_the_local_transaction_runs(broker: Broker, peer: Peer) -> None:
    topic = fresh("open")
    broker.create_topic(topic, queues=1)
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    producer = peer.start_transaction_producer(broker.name_server, fresh("producers"))
    running = producer.begin_transaction(
        Message(topic=topic, keys="slow"), local=Answer.HANG, checks=[Answer.UNKNOWN]
    )
    producer.wait_for_local("slow")
    producer.send_in_transaction(Message(topic=topic, keys="quick"), local=Answer.COMMIT)
    consumer.wait_for(1)
    same([message.keys for message in consumer.received()], ["quick"])
    producer.release("slow", Answer.COMMIT)
    assert running.result(10).local_state == "COMMIT_MESSAGE"
    consumer.wait_for(1, lambda message: message.keys == "slow")
    same([message.keys for message in consumer.received()], ["quick", "slow"])


@scenario(Ability.TRANSACTION, Ability.PUSH)
def an_unknown_transaction_is_asked_about_until_it_commits(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("unknown"), fresh("producers")
    broker.create_topic(topic, queues=1)
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    producer = peer.start_transaction_producer(broker.name_server, group)
    message = Message(topic=topic, body=b"maybe", keys="order-7", tags="late")
    sent = producer.send_in_transaction(
        message, local=Answer.UNKNOWN, checks=[Answer.UNKNOWN, Answer.COMMIT]
    )
    assert sent.local_state == "UNKNOW"
    check = producer.wait_for_check("order-7", 1)
    assert check.transaction_id == sent.transaction_id
    asked = check.message
    assert (asked.topic, asked.body, asked.tags) == (topic, b"maybe", "late")
    # Clients disagree on the id of a checked message, but the property is the same.
    assert asked.properties["UNIQ_KEY"] == sent.message_id
    assert asked.properties["PGROUP"] == group
    producer.wait_for_check("order-7", 2)
    (found,) = consumer.wait_for(1)
    assert (found.message_id, found.body) == (sent.message_id, b"maybe")
    producer.send_in_transaction(Message(topic=topic, keys="last"), local=Answer.COMMIT)
    consumer.wait_for(1, lambda message: message.keys == "last")
    same([message.keys for message in consumer.received()], ["order-7", "last"])


@scenario(Ability.TRANSACTION, Ability.PUSH)
def an_unknown_transaction_is_asked_about_and_rolled_back(broker: Broker, peer: Peer) -> None:
    topic = fresh("denied")
    broker.create_topic(topic, queues=1)
    producer = peer.start_transaction_producer(broker.name_server, fresh("producers"))
    producer.send_in_transaction(
        Message(topic=topic, keys="no"), local=Answer.UNKNOWN, checks=[Answer.ROLLBACK]
    )
    producer.wait_for_check("no")
    producer.send_in_transaction(Message(topic=topic, keys="yes"), local=Answer.COMMIT)
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    consumer.wait_for(1)
    same([message.keys for message in consumer.received()], ["yes"])


@scenario(Ability.TRANSACTION, Ability.THROWING_LISTENER, Ability.PUSH)
def a_listener_that_throws_is_asked_again(broker: Broker, peer: Peer) -> None:
    topic = fresh("throws")
    broker.create_topic(topic)
    producer = peer.start_transaction_producer(broker.name_server, fresh("producers"))
    sent = producer.send_in_transaction(
        Message(topic=topic, keys="bad-day"),
        local=Answer.THROW,
        checks=[Answer.THROW, Answer.COMMIT],
    )
    assert sent.local_state == "UNKNOW"
    producer.wait_for_check("bad-day", 2)
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    (found,) = consumer.wait_for(1)
    assert found.keys == "bad-day"


@scenario(Ability.TRANSACTION, Ability.PUSH)
def another_producer_of_the_group_is_asked_when_one_is_gone(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("heir"), fresh("producers")
    broker.create_topic(topic)
    first = peer.start_transaction_producer(broker.name_server, group)
    first.send_in_transaction(Message(topic=topic, keys="left"), local=Answer.UNKNOWN)
    first.stop()
    second = peer.start_transaction_producer(broker.name_server, group)
    second.script("left", checks=[Answer.COMMIT])
    # A broker knows a producer only after the producer sent to it or got a route to it.
    second.send_in_transaction(Message(topic=topic, keys="own"), local=Answer.COMMIT)
    second.wait_for_check("left")
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    consumer.wait_for(1, lambda message: message.keys == "left")


@scenario(Ability.TRANSACTION, Ability.PUSH)
def another_member_answers_for_a_producer_that_was_killed(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("killed"), fresh("producers")
    broker.create_topic(topic)
    member = peer.start_transaction_producer(broker.name_server, group)
    member.script("left", checks=[Answer.COMMIT])
    member.send_in_transaction(Message(topic=topic, keys="own"), local=Answer.COMMIT)
    kill_before_commit(broker, peer, topic, group)
    member.wait_for_check("left")
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    found = consumer.wait_for(2)
    same([message.keys for message in found], ["own", "left"])


@scenario(Ability.TRANSACTION, Ability.PUSH)
def a_producer_that_was_killed_is_asked_when_it_is_back(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("back"), fresh("producers")
    broker.create_topic(topic)
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    kill_before_commit(broker, peer, topic, group)
    with peer.another() as restarted:
        producer = restarted.start_transaction_producer(broker.name_server, group)
        producer.script("left", checks=[Answer.COMMIT])
        producer.send_in_transaction(Message(topic=topic, keys="own"), local=Answer.COMMIT)
        producer.wait_for_check("left")
        found = consumer.wait_for(2)
    same([message.keys for message in found], ["own", "left"])


def kill_before_commit(broker: Broker, peer: Peer, topic: str, group: str) -> None:
    """Start another process that dies in its local transaction for key ``left``."""
    with peer.another() as doomed:
        producer = doomed.start_transaction_producer(broker.name_server, group)
        producer.begin_transaction(Message(topic=topic, keys="left"), local=Answer.HANG)
        producer.wait_for_local("left")


@scenario(Ability.TRANSACTION, Ability.PUSH)
def a_transaction_that_nobody_knows_is_parked_until_resumed(broker: Broker, peer: Peer) -> None:
    topic, key = fresh("parked"), fresh("key")
    broker.create_topic(topic)
    producer = peer.start_transaction_producer(broker.name_server, fresh("producers"))
    sent = producer.send_in_transaction(Message(topic=topic, keys=key), local=Answer.UNKNOWN)
    asked = producer.wait_for_check(key, CHECKS_MAX)
    eventually(
        lambda: key.encode() in remoting.pull_all(broker.broker_address, PARKED_TOPIC),
        "the parked message",
    )
    assert len(producer.checks(key)) == CHECKS_MAX
    producer.script(key, checks=[Answer.COMMIT])
    # Java's send returns no offset id, but Java uses it as the id of a checked message.
    offset_id = sent.offset_message_id or asked.message.message_id
    if Ability.MQADMIN in peer.abilities:
        assert peer.resume(broker.name_server, topic, offset_id)
    else:
        remoting.resume(broker.broker_address, topic, offset_id)
    producer.wait_for_check(key, CHECKS_MAX + 1)
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    (found,) = consumer.wait_for(1)
    assert (found.keys, found.message_id) == (key, sent.message_id)
