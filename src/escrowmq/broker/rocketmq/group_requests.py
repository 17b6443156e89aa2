"""What parts share that store messages for groups, or change groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.net.answering import Answering
from escrowmq.broker.state.groups import Groups
from escrowmq.broker.state.topics import Topics

if TYPE_CHECKING:
    from escrowmq.broker.write.broker_clock import BrokerClock


@dataclass(frozen=True, slots=True)
class GroupRequests:
    """Fields of a part whose commands name groups and topics."""

    answering: Answering
    clock: BrokerClock
    groups: Groups
    topics: Topics
