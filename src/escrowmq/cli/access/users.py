"""Reads and changes users, at a running broker or in the data directory of a stopped one.

The second way needs no broker and no user, only the files. It lets an admin in who has lost every
other way.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from escrowmq.cli.asking import asking, whoami
from escrowmq.cli.shapes.access_shapes import PolicyShape, UserShape
from escrowmq.model.errors import RequestRefused
from escrowmq.model.users import Action
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.user_headers import (
    AclExplainHeader,
    ConsideredRow,
    ListUsersHeader,
    PolicyRow,
    UserPutHeader,
    UserRemoveHeader,
    UserRow,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from escrowmq.cli.access.user_options import UsersOptions
    from escrowmq.client.network.native_calls import NativeCalls


class Changed(NamedTuple):
    """How a change ended."""

    is_changed: bool
    #: The new secret; empty if there is none.
    secret: str

    def __repr__(self) -> str:
        return f"Changed(is_changed={self.is_changed})"


class Explained(NamedTuple):
    """The answer to the question whether a user may do something."""

    is_allowed: bool
    why: str
    advice: str
    rows: list[ConsideredRow]


class UserPlace(ABC):
    """The users of one broker."""

    @abstractmethod
    def users(self, name: str = "") -> list[UserRow]:
        """Return all users, or only the one of this name."""

    @abstractmethod
    def put(self, header: UserPutHeader, policies: Sequence[PolicyRow]) -> Changed:
        """Create or change a user."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a user."""

    @abstractmethod
    def explain(self, asked: AclExplainHeader) -> Explained:
        """Explain a decision."""

    def user(self, name: str) -> UserRow:
        """Return the user of this name."""
        for row in self.users(name):
            return row
        raise RequestRefused("user_unknown", "`escrowmq user list` shows all users", user=name)


class AskedUsers(UserPlace):
    """The users of a running broker."""

    def __init__(self, calls: NativeCalls) -> None:
        self._calls = calls

    def users(self, name: str = "") -> list[UserRow]:
        """Return all users, or only the one of this name."""
        return list(self._calls.rows(NativeCode.USER_LIST, ListUsersHeader(user=name)))

    def put(self, header: UserPutHeader, policies: Sequence[PolicyRow]) -> Changed:
        """Create or change a user."""
        answer = self._calls.call(NativeCode.USER_PUT, header, policies).header
        return Changed(answer.is_changed, answer.secret)

    def remove(self, name: str) -> None:
        """Remove a user."""
        self._calls.call(NativeCode.USER_REMOVE, UserRemoveHeader(user=name, by=whoami()))

    def explain(self, asked: AclExplainHeader) -> Explained:
        """Explain a decision."""
        answer = self._calls.call(NativeCode.ACL_EXPLAIN, asked)
        told = answer.header
        return Explained(told.is_allowed, told.why, told.advice, list(answer.rows))


@contextmanager
def users_at(given: UsersOptions) -> Iterator[UserPlace]:
    """Yield the users of a running broker, or those in a data directory."""
    if given.data is None:
        with asking(given.broker) as calls:
            yield AskedUsers(calls)
    else:
        # Imported here, because they need numpy.
        from escrowmq.cli.access.data_users import DataUsers
        from escrowmq.cli.config import load

        yield DataUsers(given.data, load(file=given.file, environ=os.environ))


def policies_of(row: UserRow) -> list[PolicyRow]:
    """Return the policies of a user."""
    found = msgspec.json.decode(row.policies, type=list[tuple[str, str, str, str]])
    return [
        PolicyRow(resource=resource, actions=actions, sources=sources, effect=effect)
        for resource, actions, sources, effect in found
    ]


def as_it_is(row: UserRow) -> UserPutHeader:
    """Return the request that leaves a user as it is; the caller replaces fields."""
    return UserPutHeader(
        user=row.user,
        by=whoami(),
        seen=row.user_version,
        kind=row.kind,
        is_enabled=row.is_enabled,
        access_key=row.access_key,
        roles=row.roles,
        certificate_names=row.certificate_names,
    )


def split(text: str, by: str = ",") -> list[str]:
    """Return the parts of a text; none for an empty one."""
    return text.split(by) if text else []


def actions_of(text: str) -> list[str]:
    """Return the actions of a policy's text, all of them for ``All``."""
    return list(Action) if text == "All" else split(text)


def actions_text(actions: list[str]) -> str:
    """Return the actions as a table shows them."""
    return "All" if set(actions) == set(Action) else ",".join(actions)


def policy_shape(row: PolicyRow) -> PolicyShape:
    """Return the shape of a policy."""
    return PolicyShape.of(row, actions=actions_of(row.actions), sources=split(row.sources))


def user_shape(row: UserRow) -> UserShape:
    """Return the shape of a user."""
    return UserShape.of(
        row,
        roles=split(row.roles),
        certificate_names=split(row.certificate_names, "\n"),
        policies=[policy_shape(policy) for policy in policies_of(row)],
    )
