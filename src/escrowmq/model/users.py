"""Users and their policies: who may do what to which resource, and from where.

The words are those of RocketMQ's access control (ACL 2.0): users, policies, resources, actions.
``access/`` decides with them; the log keeps them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from escrowmq.model.catalog import Name

POLICIES_MAX = 100
SOURCES_MAX = 32
CERTIFICATE_NAMES_MAX = 16
SECRETS_MAX = 2
"""Two secrets are valid while clients change from the old one to the new one."""

EVERY = "*"
"""At the end of a resource's name: every name that begins with the part before it."""


class Action(StrEnum):
    """What a request does to a resource."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"
    #: Read undecided transactions of others, and decide them.
    SETTLE = "Settle"
    #: Read records of the log, and evidence about transactions.
    AUDIT = "Audit"


class ResourceKind(StrEnum):
    """Kinds of resources that policies are about."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    LEDGER = "Ledger"
    PIPELINE = "Pipeline"
    #: Every kind; only in policies.
    ANY = "Any"


#: Neither a space, nor a character with a meaning in headers and paths: names are in all of them.
UserName = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@+-]*\Z"),
]
#: A literal name, the beginning of names with ``*`` at its end, or ``*`` alone.
NamePattern = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=255,
        pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff*]*[^\x00-\x1f\x7f\ud800-\udfff]\Z",
    ),
]
#: A network in CIDR notation, or an address.
Source = Annotated[str, msgspec.Meta(min_length=2, max_length=49)]


class Resource(msgspec.Struct, frozen=True, array_like=True):
    """The resources that a policy is about."""

    kind: ResourceKind
    name: NamePattern = EVERY


class UserKind(StrEnum):
    """Whether policies apply to a user."""

    NORMAL = "normal"
    #: May do everything; no policy limits it.
    SUPER = "super"


class Effect(StrEnum):
    """Whether a policy allows or denies what it matches."""

    ALLOW = "allow"
    DENY = "deny"


class Policy(msgspec.Struct, frozen=True, array_like=True):
    """Allows or denies actions on resources to clients from some addresses."""

    resource: Resource
    actions: Annotated[tuple[Action, ...], msgspec.Meta(min_length=1, max_length=len(Action))]
    #: Networks that it is limited to; empty means every address.
    sources: Annotated[tuple[Source, ...], msgspec.Meta(max_length=SOURCES_MAX)] = ()
    effect: Effect = Effect.ALLOW


class Role(StrEnum):
    """A named list of policies."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class SealedSecret(msgspec.Struct, frozen=True, array_like=True):
    """A user's secret, encrypted: ``broker/access/secret_box.py`` opens it."""

    #: Tells which key opens it, without telling the key.
    key_id: Annotated[str, msgspec.Meta(min_length=1, max_length=32)]
    nonce: Annotated[bytes, msgspec.Meta(min_length=12, max_length=12)]
    ciphertext: Annotated[bytes, msgspec.Meta(min_length=16, max_length=1_024)]

    def __repr__(self) -> str:
        """Name the key only, because a repr ends in logs."""
        return f"SealedSecret(key_id={self.key_id!r})"


class User(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A user of the broker: a service, a person, or the pipeline."""

    name: UserName
    kind: UserKind
    is_enabled: bool
    #: The name that signed requests give; different users have different ones.
    access_key: UserName
    #: The newest first.
    secrets: Annotated[tuple[SealedSecret, ...], msgspec.Meta(min_length=1, max_length=SECRETS_MAX)]
    policies: Annotated[tuple[Policy, ...], msgspec.Meta(max_length=POLICIES_MAX)] = ()
    roles: Annotated[tuple[Role, ...], msgspec.Meta(max_length=len(Role))] = ()
    #: Subjects of client certificates that stand for this user.
    certificate_names: Annotated[
        tuple[Name, ...], msgspec.Meta(max_length=CERTIFICATE_NAMES_MAX)
    ] = ()
