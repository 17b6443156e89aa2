"""RocketMQ's retry policies of consumer groups, as the catalog keeps them."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from escrowmq.model.catalog import Backoff, CustomizedBackoff, ExponentialBackoff
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.remoting.cluster_bodies import (
    CustomizedPolicy,
    ExponentialPolicy,
    RetryPolicy,
)

EXPONENTIAL, CUSTOMIZED = "EXPONENTIAL", "CUSTOMIZED"


def backoff_of(policy: RetryPolicy) -> Backoff | None:
    """Return the backoff that a tool sets; None stands for the broker's delay levels."""
    fields: dict[str, object]
    if policy.type == EXPONENTIAL and policy.exponential is not UNSET:
        said = policy.exponential
        fields = {"initial_ms": said.initial, "max_ms": said.max, "multiplier": said.multiplier}
        return _checked(fields, ExponentialBackoff)
    if policy.type == CUSTOMIZED and policy.customized is not UNSET:
        return _checked({"waits_ms": policy.customized.next}, CustomizedBackoff)
    if policy.type not in (EXPONENTIAL, CUSTOMIZED):
        raise RequestRefused(
            "retry_policy_illegal", f"name {EXPONENTIAL} or {CUSTOMIZED}", type=policy.type
        )
    return None


def _checked(
    fields: dict[str, object], kind: type[ExponentialBackoff | CustomizedBackoff]
) -> Backoff:
    tagged = {"type": kind.__struct_config__.tag, **fields}
    try:
        return msgspec.convert(tagged, kind)
    except msgspec.ValidationError as error:
        raise RequestRefused("retry_policy_illegal", str(error)) from None


def policy_of(backoff: Backoff | None) -> RetryPolicy:
    """Return a group's policy as a tool reads it."""
    if isinstance(backoff, ExponentialBackoff):
        told = ExponentialPolicy(
            initial=backoff.initial_ms, max=backoff.max_ms, multiplier=backoff.multiplier
        )
        return RetryPolicy(type=EXPONENTIAL, exponential=told)
    if backoff is None:
        return RetryPolicy()
    return RetryPolicy(type=CUSTOMIZED, customized=CustomizedPolicy(next=backoff.waits_ms))
