"""Native requests about users and policies."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import astuple

from escrowmq.broker.access.changing import changed_user
from escrowmq.broker.access.listing import considered_rows, explained, user_row
from escrowmq.broker.access.secret_box import SecretKeeper
from escrowmq.broker.native.calls import Call, looks
from escrowmq.broker.net.answering import Answering, reply_of
from escrowmq.broker.net.requests import handles
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.user_headers import (
    AclExplainHeader,
    ListUsersHeader,
    PolicyRow,
    UserPutHeader,
    UserRemoveHeader,
)
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Cataloged, Decision
from escrowmq.transaction.user_commands import RemoveUser


@dataclass(frozen=True, slots=True)
class NativeUsers:
    """Handles changes of users, lists of them, and questions about decisions."""

    answering: Answering
    store: Store
    keeper: SecretKeeper

    @handles(NativeCode.USER_PUT)
    def put(self, call: Call[UserPutHeader]) -> None:
        """Create or change a user; a new secret is in the answer, and nowhere else."""
        users = self.store.catalog.users
        command, secret = changed_user(users, call.header, call.rows(PolicyRow), self.keeper)

        def done(decision: Decision) -> None:
            is_changed = reply_of(decision, Cataloged).is_changed
            told = "" if secret is None else secret.reveal()
            call.answer(is_changed=is_changed, secret=told)

        self.answering.submit(call.request, command, done)

    @handles(NativeCode.USER_REMOVE)
    def remove(self, call: Call[UserRemoveHeader]) -> None:
        """Remove a user."""
        command = RemoveUser(name=call.header.user, by=call.header.by)
        self.answering.submit(call.request, command, lambda _: call.answer())

    @looks(NativeCode.USER_LIST)
    def users(self, call: Call[ListUsersHeader]) -> None:
        """List users, without their secrets."""
        users, wanted = self.store.catalog.users, call.header.user
        names, cursor = call.page_of((name for name in users if wanted in ("", name)), str)
        call.answer_rows((astuple(user_row(users[name])) for name in names), cursor=cursor)

    @looks(NativeCode.ACL_EXPLAIN)
    def explain(self, call: Call[AclExplainHeader]) -> None:
        """Tell whether a user may do something, and why."""
        told = explained(self.store.catalog.users, call.header)
        call.answer_rows(
            map(astuple, considered_rows(told)),
            is_allowed=told.decision.is_allowed,
            why=told.decision.why.value,
            advice=told.decision.why.advice,
        )
