"""Retries messages that a consumer could not handle, and finally makes them dead letters.

The broker stores the message again, for this group only, always as an ordinary message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.rocketmq.group_requests import GroupRequests
from escrowmq.broker.state.sent_again import sent_again
from escrowmq.broker.state.topics import dlq_topic, retry_topic
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.stored_message import decode
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import SendBackHeader
from escrowmq.transaction.commands import Append

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.store.reading.reader import StoreReader


@dataclass(frozen=True, slots=True)
class Retrying(GroupRequests):
    """Handles CONSUMER_SEND_MSG_BACK."""

    clock: BrokerClock
    reader: StoreReader
    turns: Iterator[int] = field(default_factory=count, init=False)

    @handles(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, request: Request) -> None:
        """Deliver a message again after a delay, or make it a dead letter."""
        header = request.header(SendBackHeader)
        group = self.groups.named(header.consumer_group)
        if group.retry_queue_count == 0:
            # A group without retry queues wants each message at most once.
            request.answer(ResponseCode.SUCCESS)
            return
        located = self.reader.at(header.log_offset)
        if located is None or not located.is_visible:
            raise RequestRefused(
                "message_unknown", "no such message is visible", log_offset=header.log_offset
            )
        message = decode(located.message)
        retries_max = group.retry_max
        if header.max_reconsume_times is not None and header.max_reconsume_times >= 0:
            retries_max = header.max_reconsume_times
        now_ms = self.clock.now_ms()
        if header.delay_level < 0 or message.reconsume_times >= retries_max:
            again = sent_again(message, dlq_topic(group.name))
            self.topics.for_group(again.topic, 1, now_ms)
        else:
            levels = self.topics.delay_levels
            level = levels.retry_level(message.reconsume_times, header.delay_level)
            queue_id = next(self.turns) % group.retry_queue_count
            again = sent_again(
                message, retry_topic(group.name), queue_id, now_ms + levels.delay_ms(level)
            )
            self.topics.for_group(again.topic, group.retry_queue_count, now_ms)
        self.answering.submit(
            request, Append(messages=(again,)), lambda _: request.answer(ResponseCode.SUCCESS)
        )
