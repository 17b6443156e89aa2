"""Texts of policies, as people write them: ``Topic:order-*``, ``Pub,Sub``, ``10.0.0.0/8``.

Kinds, actions, effects and roles are read in any case, as RocketMQ's tools do.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, TypeVar

import msgspec

from escrowmq.access.needs import WHOLE, Need
from escrowmq.model.errors import RequestRefused
from escrowmq.model.users import (
    EVERY,
    SOURCES_MAX,
    Action,
    Effect,
    Policy,
    Resource,
    ResourceKind,
    Role,
    UserKind,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.access.matching import Address

WordT = TypeVar("WordT", bound=StrEnum)

ALL = "All"
"""Stands for every action in a text."""

_NAMELESS = (ResourceKind.CLUSTER, ResourceKind.PIPELINE, ResourceKind.ANY)
"""Kinds that need no name: there is one of them, or the policy is about all."""


def policy_malformed(must: str, **facts: object) -> RequestRefused:
    """Return the error for a text of a policy: what it must be, and what it is."""
    return RequestRefused("policy_malformed", must, **facts)


def parse_resource(text: str) -> Resource:
    """Return the resource of a text such as ``Topic:order-*``, ``Cluster``, or ``*`` for all."""
    if text == EVERY:
        return Resource(ResourceKind.ANY)
    kind, colon, name = text.partition(":")
    found = _word(ResourceKind, kind, "the kind of resource", text)
    if not colon and found in _NAMELESS:
        return Resource(found)
    if not name:
        raise policy_malformed(
            f"write the name after a colon, such as `{found}:orders`, or `{found}:*` for all",
            resource=text,
        )
    try:
        return msgspec.convert((found, name), Resource)
    except msgspec.ValidationError as error:
        raise policy_malformed(
            "a name has at most 255 characters, no control characters, and `*` only at its end",
            resource=text[:255],
        ) from error


def parse_actions(text: str) -> tuple[Action, ...]:
    """Return the actions of a text such as ``Pub,Sub`` or ``All``, in a fixed order."""
    words = _words(text)
    if not words:
        raise policy_malformed(f"name an action: {_listed(Action)}, {ALL}", actions=text)
    if any(word.casefold() in (ALL.casefold(), EVERY) for word in words):
        return tuple(Action)
    named = {_word(Action, word, "an action", text) for word in words}
    return tuple(action for action in Action if action in named)


def parse_sources(text: str) -> tuple[str, ...]:
    """Return the networks of a text such as ``10.0.0.0/8,::1``; none for an empty one."""
    return checked_sources(_words(text))


def checked_sources(words: Iterable[str]) -> tuple[str, ...]:
    """Return these networks in their usual form, sorted."""
    found = set()
    for word in words:
        try:
            found.add(str(ip_network(word)))
        except ValueError as error:
            raise policy_malformed(
                "a source is an address or a network such as 10.1.0.0/16 or fd00::/8, whose bits"
                " after the prefix are 0",
                source=word[:255],
            ) from error
    if len(found) > SOURCES_MAX:
        raise policy_malformed(f"name at most {SOURCES_MAX} sources", sources=len(found))
    return tuple(sorted(found))


def parse_effect(text: str) -> Effect:
    """Return the effect of a text: ``allow`` or ``deny``."""
    return _word(Effect, text, "the effect", text)


def parse_role(text: str) -> Role:
    """Return the role of a text."""
    return _word(Role, text, "the role", text)


def parse_roles(text: str) -> tuple[Role, ...]:
    """Return the roles of a text such as ``viewer,operator``, in a fixed order."""
    named = {parse_role(word) for word in _words(text)}
    return tuple(role for role in Role if role in named)


def parse_kind(text: str) -> UserKind:
    """Return the kind of user of a text."""
    return _word(UserKind, text, "the kind of user", text)


def parse_policy(
    resource: str, actions: str, sources: str = "", effect: str = Effect.ALLOW
) -> Policy:
    """Return the policy that these texts describe."""
    return Policy(
        parse_resource(resource),
        parse_actions(actions),
        parse_sources(sources),
        parse_effect(effect),
    )


def checked_policy(policy: Policy) -> Policy:
    """Return a policy that did not come from texts, with what its type cannot check checked."""
    named = set(policy.actions)
    return Policy(
        policy.resource,
        tuple(action for action in Action if action in named),
        checked_sources(policy.sources),
        policy.effect,
    )


def parse_need(action: str, resource: str) -> Need:
    """Return the need that these texts name: one action, and one resource or a whole kind."""
    actions = parse_actions(action)
    found = parse_resource(resource)
    if len(actions) != 1:
        raise policy_malformed("name one action", action=action)
    if found.kind is ResourceKind.ANY:
        kinds = [kind for kind in ResourceKind if kind is not ResourceKind.ANY]
        raise policy_malformed(f"name one kind of resource: {_listed(kinds)}", resource=resource)
    if found.name == EVERY:
        return Need(actions[0], found.kind, WHOLE)
    if found.name.endswith(EVERY):
        raise policy_malformed("name one resource, without `*`", resource=resource)
    return Need(actions[0], found.kind, found.name)


def parse_address(text: str) -> Address:
    """Return the address of a text; None for an empty one."""
    if not text:
        return None
    try:
        return ip_address(text)
    except ValueError as error:
        raise policy_malformed(
            "write an address such as 10.1.2.3 or fd00::1", address=text[:255]
        ) from error


def policy_texts(policy: Policy) -> tuple[str, str, str, str]:
    """Return resource, actions, sources and effect as texts that ``parse_policy`` reads."""
    actions = ALL if set(policy.actions) == set(Action) else ",".join(policy.actions)
    return resource_text(policy.resource), actions, ",".join(policy.sources), policy.effect


def resource_text(resource: Resource) -> str:
    """Return the text of a resource."""
    if resource.kind is ResourceKind.ANY and resource.name == EVERY:
        return EVERY
    return f"{resource.kind}:{resource.name}"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _word(kind: type[WordT], text: str, what: str, whole: str) -> WordT:
    for word in kind:
        if word.casefold() == text.strip().casefold():
            return word
    raise policy_malformed(f"{what} must be one of {_listed(kind)}", value=whole[:255])


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
