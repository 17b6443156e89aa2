"""Fields and rows of requests about users and their policies.

A secret travels only in USER_PUT and in its answer. The structs that may hold one have no repr of
their fields, so that no log and no error shows it.
"""

from __future__ import annotations

from escrowmq.protocol.message.limits import Expression, Name, NameList, Value
from escrowmq.protocol.native.headers import NativeAnswer, NativeHeader, PagedHeader
from escrowmq.protocol.native.operator_headers import OperatorHeader
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.remoting.headers import Int32, Int64

#: More than a user may have, so that the broker's refusal tells the limit.
POLICY_ROWS_MAX = 1_000


class UserPutHeader(OperatorHeader, frozen=True, kw_only=True):
    """USER_PUT. The rows are all policies of the user."""

    user: Name
    #: The version of the user that the caller has seen; -1 creates the user.
    seen: Int64 = -1
    #: `normal` or `super`.
    kind: Name = "normal"
    is_enabled: bool = True
    #: The name in signed requests; empty for the user's name.
    access_key: Name = ""
    #: Comma-separated names of roles.
    roles: Name = ""
    #: Subjects of client certificates, one per line.
    certificate_names: NameList = ""
    #: `keep`, `rotate` (a new secret, beside the newest) or `retire` (all but the newest). A user
    #: that is created always gets a secret.
    secrets_after: Name = "keep"
    #: The new secret; if empty, the broker makes one.
    secret: Name = ""

    def __repr__(self) -> str:
        return f"UserPutHeader(user={self.user!r})"


class PolicyRow(NativeRow, frozen=True):
    """A policy of a user, as texts."""

    #: Such as `Topic:order-*`.
    resource: Expression
    #: Comma-separated, such as `Pub,Sub`, or `All`.
    actions: Expression
    #: Comma-separated networks or addresses; empty for every address.
    sources: Expression
    #: `allow` or `deny`.
    effect: Name


class UserPutAnswer(NativeAnswer, frozen=True, kw_only=True):
    """USER_PUT."""

    #: False if the user was already as the request says.
    is_changed: bool
    #: The new secret, which is told only here; empty if there is none.
    secret: str = ""

    def __repr__(self) -> str:
        return f"UserPutAnswer(is_changed={self.is_changed})"


class UserRemoveHeader(OperatorHeader, frozen=True, kw_only=True):
    """USER_REMOVE."""

    user: Name


class ListUsersHeader(PagedHeader, frozen=True, kw_only=True):
    """USER_LIST."""

    #: Only this user; empty for all.
    user: Name = ""


class UserRow(NativeRow, frozen=True):
    """A user, without its secrets."""

    user: str
    #: `normal` or `super`.
    kind: str
    is_enabled: bool
    access_key: str
    #: Comma-separated names of roles.
    roles: str
    #: One per line.
    certificate_names: str
    #: JSON: an array with resource, actions, sources and effect of each policy.
    policies: str
    #: Number of secrets that are valid.
    secrets: Int32
    #: Changes with each change of the user.
    user_version: Int64


class AclExplainHeader(NativeHeader, frozen=True, kw_only=True):
    """ACL_EXPLAIN."""

    user: Name
    #: One action, such as `Pub`.
    action: Name
    #: One resource, such as `Topic:orders`, or all of a kind, such as `Topic:*`.
    resource: Value
    #: Where the client is; empty if that is unknown.
    address: Name = ""


class AclExplainAnswer(NativeAnswer, frozen=True, kw_only=True):
    """ACL_EXPLAIN. The rows are all policies of the user and of its roles."""

    is_allowed: bool
    #: `allowed`, `super_user`, `user_disabled`, `denied` or `nothing_allows`.
    why: str
    #: The reason in words, and what would change it.
    advice: str


class ConsideredRow(NativeRow, frozen=True):
    """A policy, and what it has to do with the question."""

    resource: str
    actions: str
    sources: str
    effect: str
    #: The role that it comes from; empty for the user's policies.
    role: str
    #: `matches`, or what differs: `other_resource`, `other_action`, `other_source`.
    bearing: str
    #: Whether it decides.
    is_deciding: bool
