"""JSON shapes of ``escrowmq user`` and ``escrowmq acl``; see ``broker_shapes.py``."""

from __future__ import annotations

from escrowmq.cli.shapes.broker_shapes import Shape


class PolicyShape(Shape, frozen=True, kw_only=True):
    """A policy of a user."""

    #: Such as `Topic:order-*`, or `*` for everything.
    resource: str
    #: Such as `Pub`; all of them if the policy is about every action.
    actions: list[str]
    #: Networks that it is limited to; empty for every address.
    sources: list[str]
    #: `allow` or `deny`.
    effect: str


class UserShape(Shape, frozen=True, kw_only=True):
    """A user, without its secrets."""

    user: str
    #: `normal` or `super`.
    kind: str
    is_enabled: bool
    #: The name in signed requests.
    access_key: str
    roles: list[str]
    #: Subjects of client certificates that stand for the user.
    certificate_names: list[str]
    policies: list[PolicyShape]
    #: Number of secrets that are valid.
    secrets: int


class UserChangedShape(Shape, frozen=True, kw_only=True):
    """A user that was created, changed or deleted, or would be in a dry run."""

    user: str
    #: False if the user was already so.
    is_changed: bool
    #: The access key and the new secret; null if there is no new secret. It is told only here.
    access_key: str | None
    secret: str | None
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class UserPolicyShape(Shape, frozen=True, kw_only=True):
    """A policy, and the user or the role that has it."""

    user: str
    #: The role that it comes from; null if it is the user's.
    role: str | None
    resource: str
    actions: list[str]
    sources: list[str]
    effect: str


class ConsideredPolicyShape(Shape, frozen=True, kw_only=True):
    """A policy, and what it has to do with the question."""

    role: str | None
    resource: str
    actions: list[str]
    sources: list[str]
    effect: str
    #: `matches`, or the first part that differs: `other_resource`, `other_action`, `other_source`.
    bearing: str
    #: Whether this policy decides.
    is_deciding: bool


class ExplainedShape(Shape, frozen=True, kw_only=True):
    """Whether a user may do something, and why."""

    user: str
    action: str
    resource: str
    #: Where the client is; null if the question does not say.
    address: str | None
    is_allowed: bool
    #: `allowed`, `super_user`, `user_disabled`, `denied` or `nothing_allows`.
    why: str
    #: The reason in words, and what would change it.
    advice: str
    policies: list[ConsideredPolicyShape]
