"""Base class of the parts whose commands name groups and topics."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.broker.net.answering import Answering
from escrowmq.broker.state.groups import Groups
from escrowmq.broker.state.topics import Topics


@dataclass(frozen=True, slots=True)
class GroupRequests:
    """Fields of a part whose commands name groups and topics."""

    answering: Answering
    groups: Groups
    topics: Topics
