"""Names of topics and groups, and times, as gRPC messages have them.

A client with a namespace names a resource in two parts; the broker has one name for it.
"""

from __future__ import annotations

from escrowmq.broker.state.groups import check_name
from escrowmq.model.topic_names import OWN_PREFIXES
from escrowmq.protocol.grpc.messages import Duration, Resource, Timestamp
from escrowmq.protocol.grpc.resource_names import SEPARATOR, name_of
from escrowmq.protocol.message.limits import validate_topic

_NANOS_PER_MS = 1_000_000
#: The longest duration that is not cut: more than 300 years.
_SECONDS_MAX = 10**10


def topic_of(resource: Resource) -> str:
    """Return the broker's name of a topic; refuse one that no topic can have."""
    topic = name_of(resource)
    validate_topic(topic)
    return topic


def group_of(resource: Resource) -> str:
    """Return the broker's name of a consumer group; refuse one that no group can have."""
    group = name_of(resource)
    check_name(group)
    return group


def resource_of(name: str) -> Resource:
    """Return a topic or group as clients name it."""
    if SEPARATOR not in name or name.startswith(OWN_PREFIXES):
        return Resource(name=name)
    space, _, own = name.partition(SEPARATOR)
    return Resource(resource_namespace=space, name=own)


def ms_of(time: Duration | Timestamp) -> int:
    """Return a duration or an instant in milliseconds."""
    seconds = time.seconds
    if not -_SECONDS_MAX <= seconds <= _SECONDS_MAX:
        seconds = _SECONDS_MAX if seconds > 0 else -_SECONDS_MAX
    return seconds * 1_000 + time.nanos // _NANOS_PER_MS


def set_time(time: Duration | Timestamp, ms: int) -> None:
    """Write a duration or an instant into its part of a message."""
    time.seconds = ms // 1_000
    time.nanos = ms % 1_000 * _NANOS_PER_MS


def duration(ms: int) -> Duration:
    """Return a duration."""
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * _NANOS_PER_MS)


def timestamp(at_ms: int) -> Timestamp:
    """Return an instant."""
    return Timestamp(seconds=at_ms // 1_000, nanos=at_ms % 1_000 * _NANOS_PER_MS)
