"""The users in the data directory of a stopped broker."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.broker.access.changing import changed_user
from escrowmq.broker.access.listing import considered_rows, explained, user_row
from escrowmq.broker.access.secret_box import SecretKeeper
from escrowmq.broker.config import AccessConfig
from escrowmq.cli.access.users import Changed, Explained, UserPlace
from escrowmq.cli.asking import whoami
from escrowmq.model.clock import SystemClock
from escrowmq.model.errors import StoreUnusable
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.disk.lock import DirectoryLock
from escrowmq.store.recovery import format as formats
from escrowmq.store.recovery.recovery import NO_HOST, open_store
from escrowmq.store.repair.catalog_on_disk import read_catalog
from escrowmq.transaction.memory.catalog import KeptUser
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.user_commands import RemoveUser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.cli.access.users_file import UserChange
    from escrowmq.cli.config import Config
    from escrowmq.protocol.native.user_headers import (
        AclExplainHeader,
        PolicyRow,
        UserPutHeader,
        UserRow,
    )
    from escrowmq.transaction.user_commands import PutUser, UserCommand

STORE = "store"


class DataUsers(UserPlace):
    """The users in one data directory; a change needs its lock."""

    def __init__(self, data: Path, config: Config) -> None:
        self._data = data
        self._config = config
        if not (data / STORE / formats.PATH).is_file():
            raise StoreUnusable(
                "store_missing", "there is no store in this directory", path=str(data)
            )

    def _known(self) -> dict[str, KeptUser]:
        return read_catalog(OsDisk(self._data / STORE, read_only=True)).users

    def users(self, name: str = "") -> list[UserRow]:
        """Return all users, or only the one of this name."""
        known = self._known()
        return [user_row(known[one]) for one in sorted(known) if name in ("", one)]

    def put(self, header: UserPutHeader, policies: Sequence[PolicyRow]) -> Changed:
        """Create or change a user."""
        command, secret = changed_user(self._known(), header, policies, self._keeper())
        is_changed = self._execute([command])
        return Changed(is_changed, "" if secret is None else secret.reveal())

    def remove(self, name: str) -> None:
        """Remove a user."""
        self._execute([RemoveUser(name=name, by=whoami())])

    def explain(self, asked: AclExplainHeader) -> Explained:
        """Explain a decision."""
        told = explained(self._known(), asked)
        decision = told.decision
        rows = considered_rows(told)
        return Explained(decision.is_allowed, decision.why.value, decision.why.advice, rows)

    def replace_all(self, changes: Sequence[UserChange]) -> None:
        """Remove every user, and create these instead."""
        # Made before anything is removed, so that a malformed one changes nothing.
        made = self._made(changes)
        removed = [RemoveUser(name=name, by=whoami()) for name in self._known()]
        self._execute([*removed, *made])

    def planned(self, changes: Sequence[UserChange]) -> list[UserRow]:
        """Return the users that ``replace_all`` would leave."""
        made = [KeptUser(command.user, 0) for command in self._made(changes)]
        return [user_row(kept) for kept in sorted(made, key=lambda kept: kept.user.name)]

    def _made(self, changes: Sequence[UserChange]) -> list[PutUser]:
        return [changed_user({}, header, rows, self._keeper())[0] for header, rows in changes]

    def _keeper(self) -> SecretKeeper:
        return SecretKeeper(self._config.section(AccessConfig).key_file, os.environ)

    def _execute(self, commands: Sequence[UserCommand]) -> bool:
        """Open the store, execute commands, and close it; return whether the last wrote a record.

        The first refusal raises; the commands before it stay done.
        """
        config = self._config
        disk = OsDisk(self._data / STORE)
        # Open with the state table: the next start compares the chosen state store with the log.
        policy = replace(config.section(CheckPolicy), state_store="table")
        is_changed = False
        with DirectoryLock(self._data):
            store, _ = open_store(disk, config.section(StoreConfig), policy, NO_HOST)
            try:
                store.core.limits = config.section(LimitsConfig)
                # Users need the newest format: an older release would drop them.
                formats.upgrade(disk)
                now_ms = store.last_at_ms or SystemClock().now_ms()
                for command in commands:
                    decision = store.execute(command, now_ms)
                    if decision.refused is not None:
                        raise decision.refused
                    is_changed = bool(decision.records)
                store.sync()
            finally:
                store.close()
        return is_changed
