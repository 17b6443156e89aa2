"""Settings of a client: checked, and answered with those that it must use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from escrowmq.broker.grpc.names import duration, group_of, topic_of
from escrowmq.broker.state.clients import ConsumerStatement, Subscription
from escrowmq.model.catalog import ExponentialBackoff
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.enums import GrpcClientType, GrpcCode, GrpcFilterType
from escrowmq.protocol.message.filter import ALL, parse_filter
from escrowmq.protocol.message.limits import BODY_BYTES_MAX, EXPRESSION_CHARS_MAX
from escrowmq.protocol.remoting.client_bodies import CONSUME_TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.model.catalog import Group
    from escrowmq.protocol.message.delay_levels import DelayLevels

TOPICS_MAX = 1_000
"""Topics that a producer declares, or a consumer subscribes to."""
RECEIVED_MAX = 32
POLLING_MS = 20_000
#: How a producer repeats a send that failed.
SEND_ATTEMPTS_MAX = 3
SEND_AGAIN_MS = 10
SEND_AGAIN_MS_MAX = 1_000
SEND_BACKOFF = 2.0

_POP = CONSUME_TYPES[-1]
_TAG_FILTERS = (GrpcFilterType.FILTER_TYPE_UNSPECIFIED, GrpcFilterType.TAG)
_PRODUCERS = (GrpcClientType.PRODUCER,)
_CONSUMERS = (
    GrpcClientType.PUSH_CONSUMER,
    GrpcClientType.SIMPLE_CONSUMER,
    GrpcClientType.PULL_CONSUMER,
)


class ClientFacts(NamedTuple):
    """What a client said of itself."""

    #: Topics for which it sends, which are its producer groups.
    topics: tuple[str, ...]
    #: Its consumer group and subscriptions; None for a producer.
    consuming: ConsumerStatement | None


def read_settings(settings: grpc.Settings) -> ClientFacts:
    """Return what a client's settings say of it; refuse settings that do not fit its type."""
    kind, part = settings.client_type, settings.WhichOneof("pub_sub")
    if kind in _PRODUCERS and part == "publishing":
        return ClientFacts(_topics(settings.publishing), None)
    if kind in _CONSUMERS and part == "subscription":
        return ClientFacts((), _consuming(settings.subscription))
    raise RequestRefused(
        "client_type_unknown",
        "a producer sends its publishing settings, a consumer its subscription",
        client_type=kind,
        settings=part,
    )


def _topics(publishing: grpc.Publishing) -> tuple[str, ...]:
    _limit(len(publishing.topics))
    return tuple(dict.fromkeys(map(topic_of, publishing.topics)))


def _consuming(said: grpc.Subscription) -> ConsumerStatement:
    _limit(len(said.subscriptions))
    group = group_of(said.group)
    return ConsumerStatement(
        group=group,
        consume_type=_POP,
        subscriptions=tuple(_subscription(one) for one in said.subscriptions),
    )


def _subscription(entry: grpc.SubscriptionEntry) -> Subscription:
    topic = topic_of(entry.topic)
    expression = expression_of(entry.expression)
    codes = parse_filter(expression)
    return Subscription(topic=topic, expression=expression, codes=codes or frozenset())


def expression_of(filter_: grpc.FilterExpression) -> str:
    """Return the tag expression of a subscription; refuse SQL and other kinds of filters."""
    if filter_.type not in _TAG_FILTERS:
        kind = "SQL" if filter_.type == GrpcFilterType.SQL else filter_.type
        raise RequestRefused("filter_unsupported", "subscribe by tags", kind=kind)
    if len(filter_.expression) > EXPRESSION_CHARS_MAX:
        raise RequestRefused("filter_unsupported", "too long", chars_max=EXPRESSION_CHARS_MAX)
    return filter_.expression or ALL


def _limit(count: int) -> None:
    if count > TOPICS_MAX:
        raise RequestRefused(
            "too_many_topics", f"a client has at most {TOPICS_MAX} topics", count=count
        )


# Answers.


def answer_of(
    settings: grpc.Settings, group: Group | None, levels: DelayLevels
) -> grpc.TelemetryCommand:
    """Return a client's settings with the broker's values in them."""
    told = grpc.Settings(
        client_type=settings.client_type,
        access_point=settings.access_point if settings.HasField("access_point") else None,
        request_timeout=(
            settings.request_timeout if settings.HasField("request_timeout") else None
        ),
        user_agent=settings.user_agent,
        metric=grpc.Metric(on=False),
    )
    if settings.WhichOneof("pub_sub") == "publishing":
        told.publishing.CopyFrom(_told_publishing(settings.publishing))
        told.backoff_policy.CopyFrom(_producer_backoff())
    else:
        is_fifo = group is not None and group.is_ordered
        told.subscription.CopyFrom(_told_subscription(settings.subscription, is_fifo=is_fifo))
        told.backoff_policy.CopyFrom(_consumer_backoff(group, levels))
    return grpc.TelemetryCommand(status=grpc.Status(code=GrpcCode.OK, message="OK"), settings=told)


def _told_publishing(said: grpc.Publishing) -> grpc.Publishing:
    return grpc.Publishing(
        topics=said.topics, max_body_size=BODY_BYTES_MAX, validate_message_type=True
    )


def _told_subscription(said: grpc.Subscription, *, is_fifo: bool) -> grpc.Subscription:
    return grpc.Subscription(
        group=said.group,
        subscriptions=said.subscriptions,
        fifo=is_fifo,
        receive_batch_size=RECEIVED_MAX,
        long_polling_timeout=duration(POLLING_MS),
    )


def _producer_backoff() -> grpc.RetryPolicy:
    return grpc.RetryPolicy(
        max_attempts=SEND_ATTEMPTS_MAX,
        exponential_backoff=grpc.ExponentialBackoff(
            initial=duration(SEND_AGAIN_MS),
            max=duration(SEND_AGAIN_MS_MAX),
            multiplier=SEND_BACKOFF,
        ),
    )


def _consumer_backoff(group: Group | None, levels: DelayLevels) -> grpc.RetryPolicy:
    retries_max = 16 if group is None else group.retry_max
    backoff = None if group is None else group.backoff
    if isinstance(backoff, ExponentialBackoff):
        return grpc.RetryPolicy(
            max_attempts=retries_max + 1,
            exponential_backoff=grpc.ExponentialBackoff(
                initial=duration(backoff.initial_ms),
                max=duration(backoff.max_ms),
                multiplier=backoff.multiplier,
            ),
        )
    first = levels.retry_level(0, 0)
    waits: Sequence[int] = [levels.delay_ms(level) for level in range(first, levels.count + 1)]
    if backoff is not None:
        waits = backoff.waits_ms
    return grpc.RetryPolicy(
        max_attempts=retries_max + 1,
        customized_backoff=grpc.CustomizedBackoff(next=[duration(ms) for ms in waits]),
    )
