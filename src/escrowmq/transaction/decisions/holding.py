"""Decisions that hold half messages and store ordinary messages.

The functions read the core; none changes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.refused_states import already
from escrowmq.transaction.commands import Append, Decision, HoldReply, Prepare
from escrowmq.transaction.decisions.answers import refuse
from escrowmq.transaction.decisions.assigning import give_each
from escrowmq.transaction.policy import HOUR_MS
from escrowmq.transaction.records import (
    UNNUMBERED,
    NamedQueue,
    Placed,
    Prepared,
    Record,
    Scheduled,
    Stored,
)
from escrowmq.transaction.states import State
from escrowmq.transaction.table import SPAN_MAX, Half

if TYPE_CHECKING:
    from escrowmq.model.message import SentMessage
    from escrowmq.model.message_columns import MessageColumns
    from escrowmq.transaction.core import Transactions

    Messages = tuple[SentMessage, ...] | MessageColumns

DELAY_MS_MAX = 10 * 365 * 24 * HOUR_MS
"""The longest time by which a message can be scheduled ahead."""

PROPERTIES_BYTES_MAX = 32_767
"""The longest properties that the stored layout has room for."""

_DECIDED = (State.COMMITTED, State.ROLLED_BACK)


def prepare(core: Transactions, command: Prepare, now_ms: int) -> Decision:
    """Hold the half messages of one request, unless they are held already."""
    refused = beyond_limits(core, command)
    if refused is not None:
        return refused
    half = newest(core, command)
    if half is None:
        if command.number:
            return number_gap(command, expected=0)
        return hold(core, command, core.table.end, now_ms)
    if command.number is None:
        if is_resent(core, half, command, now_ms):
            return held_before(core, half.first, 1)
        return hold(core, command, core.table.end, now_ms)
    head = core.head_of(half.first)
    return join(core, head, command) or hold(core, command, head, now_ms)


def beyond_limits(core: Transactions, command: Prepare) -> Decision | None:
    """Refuse a request that breaks a limit by itself; None if it breaks none."""
    messages, policy = command.content, core.policy
    count = len(messages)
    limit = SPAN_MAX if command.bulk else policy.messages_max
    if not 1 <= count <= limit:
        return wrong_count(count, limit)
    if exceeds(messages, policy.transaction_bytes_max):
        return request_too_large(core)
    if command.number is not None and not command.transaction_id:
        return refuse("no_transaction_id", "requests can be numbered only within a transaction")
    return None


def newest(core: Transactions, command: Prepare) -> Half | None:
    """Return the newest request with this id, if it and this one are both numbered or both not.

    Stock clients reuse ids, so their requests never join an SDK's transaction, nor the reverse.
    """
    half = core.find(command.transaction_id)
    if half is None:
        return None
    was_numbered = core.table.identity(half)[1] != UNNUMBERED
    return half if was_numbered == (command.number is not None) else None


def hold(core: Transactions, command: Prepare, head: int, now_ms: int) -> Decision:
    """Hold a new request of the transaction that starts at ``head``."""
    records: list[Record] = []
    origins = core.names.origins
    origin = origins.of(command.group, command.ledger, command.allowed_ms, command.user)
    if not isinstance(origin, int):
        if len(origins) >= core.limits.origins_max:
            return refuse(
                "too_many_origins",
                "use fewer producer groups, ledgers and times allowed, or raise limits.origins_max",
                producer_group=command.group,
                max=core.limits.origins_max,
            )
        records.append(origin)
        origin = origin.id
    messages = command.content
    queues = number_queues(core, messages, records)
    # ``isinstance`` with a struct such as ``Decision`` takes three times as long.
    if not isinstance(queues, list):
        return queues
    delays = delays_of(messages)
    if not any(delays):
        delays = []
    elif min(delays) < 0 or max(delays) > DELAY_MS_MAX:
        return delay_illegal()
    after_ms = core.policy.check_after_ms
    if command.check_after_ms is not None:
        # The first check must not come after the transaction is parked.
        after_ms = min(max(command.check_after_ms, 0), core.policy.park_after_ms)
    records.append(
        Prepared(
            first=core.table.end,
            head=head,
            origin=origin,
            transaction_id=command.transaction_id,
            number=UNNUMBERED if command.number is None else command.number,
            next_check_at_ms=now_ms + after_ms,
            deliver_after_ms=delays,
            placed=Placed(queues),
        )
    )
    return Decision(records=tuple(records), messages=command.messages, columns=command.columns)


def is_resent(core: Transactions, half: Half, command: Prepare, now_ms: int) -> bool:
    """Whether a stock client resends a half message because it missed the reply."""
    return (
        len(command.messages) == 1
        and half.state not in _DECIDED
        and now_ms - half.stored_at_ms <= core.policy.resend_window_ms
        and core.names.origins.is_of(half.origin, command.group)
        and core.table.holds(half, command.messages[0])
    )


def join(core: Transactions, head: int, command: Prepare) -> Decision | None:
    """Answer a numbered request of a known transaction; None if it can be held as the next one."""
    half = core.row(head)
    if not core.names.origins.is_of(half.origin, command.group):
        return refuse(
            "producer_group_wrong",
            "another producer group uses this transaction id",
            transaction_id=command.transaction_id,
            producer_group=command.group,
        )
    sent_by = core.names.origins[half.origin].user
    if sent_by and command.user and sent_by != command.user:
        return refuse(
            "transaction_of_other_user",
            "another user holds this transaction: use an id of your own",
            transaction_id=command.transaction_id,
            user=command.user,
        )
    if half.state in _DECIDED:
        by, at_ms = core.table.decided_by(half)
        return refuse(
            already(half.state.label),
            "begin a new transaction",
            transaction_id=command.transaction_id,
            half_offset=head,
            by=by,
            at_ms=at_ms,
        )
    ranges = core.ranges_of(head)
    number = command.number or 0
    if number < len(ranges):
        return answer_repeat(core, command, *ranges[number])
    return refuse_to_grow(core, half, ranges, command)


def answer_repeat(core: Transactions, command: Prepare, first: int, count: int) -> Decision:
    """Answer a repeated number as the first time; refuse it if the messages differ."""
    if not is_same(core, first, count, command.content):
        return refuse(
            "number_reused",
            "a repeated request must hold the same messages",
            transaction_id=command.transaction_id,
            number=command.number,
            count=count,
        )
    return held_before(core, first, count)


def is_same(core: Transactions, first: int, count: int, messages: Messages) -> bool:
    """Whether these rows hold these messages, for the same queues."""
    if count != len(messages):
        return False
    contents = messages if isinstance(messages, tuple) else messages.contents()
    for row, message in enumerate(contents, first):
        half = core.row(row)
        queue = core.names.number_of(message.topic, message.queue_id)
        if half.queue != queue or not core.table.holds(half, message):
            return False
    return True


def refuse_to_grow(
    core: Transactions, half: Half, ranges: list[tuple[int, int]], command: Prepare
) -> Decision | None:
    """Refuse a request that an undecided transaction cannot take; None if it can."""
    if half.state is State.PARKED:
        return refuse(
            "already_parked",
            "resume or decide the transaction first",
            transaction_id=command.transaction_id,
            half_offset=half.half_offset,
        )
    if command.number != len(ranges):
        return number_gap(command, expected=len(ranges))
    if command.bulk:
        return None
    parts = core.parts.get(half.half_offset)
    messages = parts.messages if parts else ranges[0][1]
    held_bytes = parts.bytes if parts else core.table.sizes(*ranges[0])
    if messages + len(command.content) > core.policy.messages_max:
        return wrong_count(messages + len(command.content), core.policy.messages_max)
    if exceeds(command.content, core.policy.transaction_bytes_max - held_bytes):
        return refuse(
            "transaction_too_large",
            f"a transaction holds at most {core.policy.transaction_bytes_max} bytes",
            transaction_id=command.transaction_id,
            held_bytes=held_bytes,
        )
    return None


def number_gap(command: Prepare, *, expected: int) -> Decision:
    """Refuse a request, because requests before it are missing."""
    return refuse(
        "number_gap",
        "send the requests of a transaction in order, from number 0",
        transaction_id=command.transaction_id,
        number=command.number,
        expected=expected,
    )


def wrong_count(count: int, limit: int) -> Decision:
    """Refuse a request with no messages or with more than the limit."""
    if not count:
        return refuse("no_messages", "a request brings at least one message")
    return refuse("too_many_messages", f"at most {limit} can be taken together", count=count)


def request_too_large(core: Transactions) -> Decision:
    """Refuse a request with more bytes than a transaction may have."""
    return refuse(
        "request_too_large",
        f"a request brings at most {core.policy.transaction_bytes_max} bytes",
    )


def delay_illegal() -> Decision:
    """Refuse a delay that is negative or too long."""
    return refuse("delay_illegal", f"a message can wait for 0 to {DELAY_MS_MAX} ms")


def held_before(core: Transactions, first: int, count: int) -> Decision:
    """Answer a repeated request as the first time."""
    halves = (core.table.get(row) for row in range(first, first + count))
    offsets = [half.log_offset for half in halves if half is not None]
    return Decision(
        reply=HoldReply(half_offset=first, count=count, log_offsets=offsets, repeated=True)
    )


def delays_of(messages: Messages) -> list[int]:
    """Return the delay of each message after the commit; may be empty when none is delayed."""
    if isinstance(messages, tuple):
        return [message.deliver_after_ms for message in messages]
    return messages.deliver_after_ms


def number_queues(
    core: Transactions, messages: Messages, records: list[Record]
) -> list[int] | Decision:
    """Return each message's queue number; name new queues in ``records``, or refuse them."""
    if not isinstance(messages, tuple):
        return number_few_queues(core, messages, records)
    topic = messages[0].topic
    known = core.names.queues_of.get(topic, {})
    if len(messages) == 1 and messages[0].queue_id in known:
        return [known[messages[0].queue_id]]
    # Nearly always one topic with known queues: this path builds no tuple per message.
    queues = [known.get(message.queue_id, -1) for message in messages if message.topic == topic]
    if len(queues) == len(messages) and -1 not in queues:
        return queues
    return name_queues(core, [(m.topic, m.queue_id) for m in messages], records)


def number_few_queues(
    core: Transactions, messages: MessageColumns, records: list[Record]
) -> list[int] | Decision:
    """Return the queue number of each message of a large request, which has few queues."""
    numbers = name_queues(core, [(one.topic, one.queue_id) for one in messages.queues], records)
    if isinstance(numbers, Decision):
        return numbers
    return [numbers[queue] for queue in messages.queue_of.tolist()]


def name_queues(
    core: Transactions, queues: list[tuple[str, int]], records: list[Record]
) -> list[int] | Decision:
    """Return the numbers of queues; name new ones; refuse one that its topic does not have."""
    catalog = core.catalog
    new: dict[tuple[str, int], NamedQueue] = {}
    numbers = []
    for topic, queue_id in queues:
        incarnation = 0
        if catalog.is_kept and core.names.number_of(topic, queue_id) is None:
            kept = catalog.topics.get(topic)
            # The sender saw the topic, but it was deleted or made anew before this command.
            if kept is None:
                return refuse("topic_unknown", "create the topic first", topic=topic)
            if queue_id >= kept.topic.queue_count:
                return refuse(
                    "queue_id_illegal",
                    f"the topic has {kept.topic.queue_count} queues",
                    topic=topic,
                    queue_id=queue_id,
                    max=kept.topic.queue_count - 1,
                )
            incarnation = kept.incarnation
        numbers.append(core.names.queue_of(topic, queue_id, new, incarnation))
    records.extend(new.values())
    return numbers


def exceeds(messages: Messages, bytes_max: int) -> bool:
    """Whether the bodies and properties of these messages are over ``bytes_max`` bytes."""
    if not isinstance(messages, tuple):
        return messages.size > bytes_max
    bodies = sum([len(message.body) for message in messages])
    # Few requests are near the limit: skip a second pass over the messages of the others.
    if bodies + len(messages) * PROPERTIES_BYTES_MAX <= bytes_max:
        return False
    return bodies + sum([len(message.properties) for message in messages]) > bytes_max


def append(core: Transactions, command: Append, now_ms: int) -> Decision:
    """Store ordinary messages, or schedule them when they name a later time."""
    count = len(command.messages)
    if not 1 <= count <= SPAN_MAX:
        return wrong_count(count, SPAN_MAX)
    if exceeds(command.messages, core.policy.transaction_bytes_max):
        return request_too_large(core)
    records: list[Record] = []
    later = [message.deliver_at_ms for message in command.messages]
    latest = max(later)
    if latest > now_ms + DELAY_MS_MAX:
        return delay_illegal()
    if latest > now_ms >= min(later):
        return refuse(
            "mixed_delivery_times",
            "send messages for now and messages for later in separate requests",
            count=count,
        )
    queues = number_queues(core, command.messages, records)
    if not isinstance(queues, list):
        return queues
    new = Placed(queues)
    if latest > now_ms:
        records.append(Scheduled(first=core.table.end, deliver_at_ms=later, placed=new))
    else:
        records.append(Stored(queue_offsets=give_each(core, queues), placed=new))
    return Decision(records=tuple(records), messages=command.messages)
