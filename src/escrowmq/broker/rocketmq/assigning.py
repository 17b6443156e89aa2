"""Assigns queues to the members of a group, for clients that leave that to the broker.

A group pulls a topic unless SET_MESSAGE_REQUEST_MODE said that it pops it. Pulled queues are shared
out; each member that pops may read all queues, or its own and those of some members after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.rocketmq.group_requests import GroupRequests
from escrowmq.broker.rocketmq.json_answers import answer_json
from escrowmq.model.catalog import Setting
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import RETRY_PREFIX
from escrowmq.protocol.remoting import bodies, pop_headers
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.transaction.commands import PutSetting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from escrowmq.broker.config import Identity
    from escrowmq.broker.state.client_links import ClientLink
    from escrowmq.broker.state.clients import Clients
    from escrowmq.transaction.memory.catalog import Catalog

_MODES = "modes "
ALL_QUEUES = -1
BROADCASTING = "BROADCASTING"


class KeptMode(msgspec.Struct, frozen=True):
    """The mode of a group in one topic."""

    mode: pop_headers.RequestMode = "PULL"
    share_queue_count: int = 0


@dataclass(frozen=True, slots=True)
class Assigning(GroupRequests):
    """Handles QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE."""

    catalog: Catalog
    clients: Clients[ClientLink]
    identity: Identity

    @handles(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set_mode(self, request: Request) -> None:
        """Set whether a group pulls or pops a topic; members learn it when they ask next."""
        body = bodies.read_body(pop_headers.RequestModeBody, request.frame.body)
        if body.topic.startswith(RETRY_PREFIX):
            raise RequestRefused("pop_of_retries", "this topic is pulled", topic=body.topic)
        self.topics.named(body.topic)
        self.groups.named(body.consumer_group)
        modes = dict(self._modes(body.consumer_group))
        modes[body.topic] = KeptMode(body.mode, max(body.share_queue_count, 0))
        known = {topic: mode for topic, mode in modes.items() if self.topics.get(topic) is not None}
        setting = Setting(name=_MODES + body.consumer_group, value=msgspec.to_builtins(known))
        self.answering.submit(request, PutSetting(setting=setting), lambda _: request.answer())

    def _modes(self, group: str) -> Mapping[str, KeptMode]:
        kept = self.catalog.settings.get(_MODES + group)
        return {} if kept is None else msgspec.convert(kept.value, dict[str, KeptMode])

    @handles(RequestCode.QUERY_ASSIGNMENT)
    def assign(self, request: Request) -> None:
        """Answer which queues a member should read, and how."""
        body = bodies.read_body(pop_headers.AssignmentRequest, request.frame.body)
        topic = self.topics.named(body.topic)
        mode = self._modes(body.consumer_group).get(body.topic, KeptMode())
        ids = self._ids(body, mode, topic.read_queue_count)
        assignments = tuple(
            pop_headers.Assignment(
                queue=bodies.QueueName(
                    broker_name=self.identity.name, queue_id=queue_id, topic=topic.name
                ),
                mode=mode.mode,
            )
            for queue_id in ids
        )
        answer_json(request, pop_headers.Assignments(assignments=assignments))

    def _ids(
        self, body: pop_headers.AssignmentRequest, mode: KeptMode, queue_count: int
    ) -> list[int]:
        """Return the ids of the queues that a member should read."""
        if body.message_model == BROADCASTING:
            return list(range(queue_count))
        known = self.clients.consumers(body.consumer_group)
        members = sorted(known.members) if known is not None else []
        if body.client_id not in members:
            # It is assigned queues after its first heartbeat.
            return []
        at, count = members.index(body.client_id), len(members)
        if mode.mode == "PULL":
            return shared_out(queue_count, at, count)
        if mode.share_queue_count == 0 or mode.share_queue_count >= count - 1:
            return [ALL_QUEUES]
        if count > queue_count:
            return [at % queue_count]
        ids = [
            queue_id
            for step in range(mode.share_queue_count + 1)
            for queue_id in shared_out(queue_count, (at + step) % count, count)
        ]
        return sorted(set(ids))


def shared_out(queue_count: int, at: int, count: int) -> list[int]:
    """Return the queues of the member number ``at`` of ``count``: a run of almost equal length."""
    size, more = divmod(queue_count, count)
    first = at * size + min(at, more)
    return list(range(first, first + size + (at < more)))
