"""Settings of producers and consumers. This module stays light: it loads with their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from escrowmq.model.credentials import Credentials
from escrowmq.model.errors import RequestRefused
from escrowmq.model.tls import Tls

GROUP_CHARS_MAX = 120
TOPICS_MAX = 1_000
"""Topics that a producer can declare, as with RocketMQ's 5.x clients."""


class Start(StrEnum):
    """Where a group starts in a queue that it has never read."""

    FIRST = "first"
    LAST = "last"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of a producer."""

    #: How long the producer keeps trying a send, a hold or a decision.
    timeout_s: float = 10.0
    #: How long after its first half message a transaction may commit; later, a check may fence it.
    max_duration_s: float = 60.0
    #: Age before the first back-check; None means the broker's policy.
    check_after_s: float | None = None
    #: Interval at which a producer with a ledger deletes old rows; 0 means never.
    clean_ledger_every_s: float = 600.0
    #: TLS to the brokers; None means what the environment asks for (ESCROWMQ_TLS_CA and others).
    tls: Tls | None = None
    #: The user that signs the requests; None means what the environment has
    #: (ESCROWMQ_ACCESS_KEY_ID and ESCROWMQ_SECRET, or ESCROWMQ_CREDENTIALS_FILE).
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        bounds = {
            "timeout_s": (0.001, 3_600.0),
            "max_duration_s": (0.001, 86_400.0),
            "check_after_s": (0.0, 86_400.0),
            "clean_ledger_every_s": (0.0, 86_400.0),
        }
        if self.check_after_s is None:
            del bounds["check_after_s"]
        _check(self, "producer", bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of a consumer."""

    #: Maximum number of handlers that run at the same time.
    concurrency: int = 16
    #: Whether each member of the group gets every message. Then nothing is retried.
    broadcast: bool = False
    #: Handle the messages of a queue one at a time; the next one starts when the last is done.
    ordered: bool = False
    #: Where the group starts in a queue that it has never read.
    start: Start = Start.FIRST
    #: For ``Start.TIME``: milliseconds since 1970.
    start_at_ms: int = 0
    #: Retries after the first try before a message becomes a dead letter.
    retries_max: int = 16
    #: Timeout of one handler call; a call that takes longer has failed.
    handler_timeout_s: float = 900.0
    #: How long ``close``, and each queue that goes to another member, waits for running handlers.
    stop_s: float = 30.0
    #: TLS to the brokers; None means what the environment asks for (ESCROWMQ_TLS_CA and others).
    tls: Tls | None = None
    #: The user that signs the requests; None means what the environment has
    #: (ESCROWMQ_ACCESS_KEY_ID and ESCROWMQ_SECRET, or ESCROWMQ_CREDENTIALS_FILE).
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "concurrency": (1, 10_000),
            "retries_max": (0, 1_000),
            "handler_timeout_s": (0.001, 7 * 86_400.0),
            "stop_s": (0.0, 86_400.0),
        }
        _check(self, "consumer", bounds)
        if self.start not in list(Start):
            raise RequestRefused(
                "bad_config", f"must be one of {', '.join(Start)}", key="consumer.start",
                value=self.start,
            )  # fmt: skip
        if self.broadcast and self.ordered:
            raise RequestRefused(
                "bad_config", "each member gets all messages, so members cannot lock queues",
                key="consumer.ordered",
            )  # fmt: skip


ConfigT = TypeVar("ConfigT", ProducerConfig, ConsumerConfig)


def with_settings(
    kind: type[ConfigT], config: ConfigT | None, settings: Mapping[str, Any], owner: str
) -> ConfigT:
    """Return the config with single settings changed."""
    if config is not None and not isinstance(config, kind):
        raise RequestRefused("bad_config", f"must be a {kind.__name__}", key=f"{owner}.config")
    known = [field.name for field in fields(kind)]
    for name in settings:
        if name not in known:
            raise RequestRefused(
                "bad_config", f"unknown; settings are {', '.join(known)}", key=f"{owner}.{name}"
            )
    return replace(config or kind(), **settings)


def _check(
    config: ProducerConfig | ConsumerConfig, owner: str, bounds: Mapping[str, tuple[float, float]]
) -> None:
    """Refuse ``tls`` or ``credentials`` of another type, and numbers beyond their bounds."""
    # A user may pass any value.
    for name, kind in (("tls", Tls), ("credentials", Credentials)):
        given = getattr(config, name)
        if given is not None and not isinstance(given, kind):
            must = f"must be escrowmq.{kind.__name__}(…) or None"
            raise RequestRefused("bad_config", must, key=f"{owner}.{name}")
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        try:
            is_within = low <= value <= high
        except TypeError:
            is_within = False
        if not is_within:
            raise RequestRefused(
                "bad_config", f"must be from {low} to {high}", key=f"{owner}.{name}", value=value
            )


def checked_topics(topics: Sequence[str]) -> tuple[str, ...]:
    """Return a producer's declared topics; refuse what is no list of topics."""
    # Imported here, so that this module stays light.
    from escrowmq.protocol.message.limits import validate_topic

    given: object = topics
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        given = (None,)
    if not all(isinstance(one, str) for one in given):
        raise RequestRefused(
            "bad_config", "must be a list of names: topics=[…]", key="producer.topics"
        )
    named = tuple(dict.fromkeys(topics))
    if len(named) > TOPICS_MAX:
        raise RequestRefused(
            "bad_config", f"at most {TOPICS_MAX} topics", key="producer.topics", value=len(named)
        )
    for topic in named:
        validate_topic(topic)
    return named


def check_group(group: str) -> None:
    """Refuse a name that no broker accepts."""
    if not isinstance(group, str):
        raise RequestRefused("group_illegal", "a group is text", type=type(group).__name__)
    if not 0 < len(group) <= GROUP_CHARS_MAX:
        raise RequestRefused(
            "group_illegal", f"1 to {GROUP_CHARS_MAX} characters", group=group[:256]
        )
