"""Access control of one broker: its gate, its local admin's token, and the mark in its log."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.access.gate import AccessGate
from escrowmq.broker.access.secret_box import made_secret
from escrowmq.model.credentials import LOCAL_ADMIN
from escrowmq.model.event_log import event_log
from escrowmq.transaction.user_commands import MarkAccess

if TYPE_CHECKING:
    from pathlib import Path

    from escrowmq.broker.access.secret_box import SecretKeeper
    from escrowmq.broker.config import AccessConfig
    from escrowmq.broker.write.writer import Writer
    from escrowmq.model.clock import Clock
    from escrowmq.model.secret import Secret
    from escrowmq.transaction.memory.catalog import Catalog

log = event_log(__name__)

TOKEN_FILE = "admin-token"  # noqa: S105 - its name
"""In the data directory: credentials of the local admin, for this run of the broker."""
_OWNER_ONLY = 0o600


class AccessServing:
    """Opens the gate once the users are known, and keeps it current."""

    def __init__(
        self, config: AccessConfig, data: Path, keeper: SecretKeeper, clock: Clock
    ) -> None:
        self.is_on = config.mode == "on"
        self._requires_tls = config.requires_tls
        self._path = data / TOKEN_FILE
        self._keeper = keeper
        self._clock = clock
        #: None without access control, and until the store has recovered.
        self.gate: AccessGate | None = None

    def open_gate(self, catalog: Catalog) -> AccessGate | None:
        """Return the gate; None without access control."""
        if not self.is_on:
            if catalog.was_access_on:
                log.warning("access_is_off", extra={"users": len(catalog.users)})
            return None
        if catalog.users:
            # A broker that cannot open any secret should say so at its start.
            _ = self._keeper.box
        else:
            log.warning("access_without_users", extra={"admitted": str(self._path)})
        token = made_secret()
        write_token(self._path, token)
        self.gate = AccessGate(
            catalog, self._keeper, self._clock.now_ms, token, requires_tls=self._requires_tls
        )
        return self.gate

    async def mark(self, writer: Writer) -> None:
        """Record that access control is on, so that lost users let nobody in."""
        if self.gate is not None:
            await writer.submit(MarkAccess())

    async def sweep(self) -> None:
        """Cut connections of users that may do less than before."""
        if self.gate is not None:
            self.gate.sweep()

    async def close(self) -> None:
        """Remove the token, which is worth nothing any more."""
        if self.gate is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._path.unlink)


def write_token(path: Path, token: Secret) -> None:
    """Write a credentials file that only its owner reads, whole or not at all."""
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode({"access_key": LOCAL_ADMIN, "secret": token.reveal()}))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
