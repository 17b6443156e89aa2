"""Chooses the state store that ``transaction.state_store`` names, and lets it follow."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.model.errors import StoreUnusable
from escrowmq.store.mapped.mapped_states import MappedStates
from escrowmq.store.mapped.record_file import DIRECTORY as MAPPED
from escrowmq.store.states.follower import Follower
from escrowmq.transaction.state_store import StateClaim

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Disk
    from escrowmq.store.store import Store
    from escrowmq.transaction.policy import CheckPolicy
    from escrowmq.transaction.state_store import StateStore

DATABASE = "state.db"
#: Names that state stores may leave in a store's directory.
STATE_NAMES = (MAPPED, DATABASE, *(f"{DATABASE}-{suffix}" for suffix in ("journal", "shm", "wal")))


def states_of(store: Store, policy: CheckPolicy) -> StateStore | None:
    """Return the chosen state store, not yet open; None if it is the state table itself."""
    if policy.state_store == "mapped":
        return MappedStates(store.disk, store.table.chunk_rows)
    if policy.state_store == "sql":
        # Imported here, because brokers with another state store do not need this module.
        from escrowmq.store.sql.sql_states import SqlStates

        url = policy.state_url or url_in(store.disk)
        return SqlStates(url, store.core.lineage.store_id)
    return None


def open_states(store: Store) -> None:
    """Let the chosen state store follow the store; bring it up to the log if it can be reached."""
    states = states_of(store, store.core.policy)
    if states is None:
        return
    place = place_of(store.disk)
    follower = Follower(store, states, lambda: StateClaim(store.core.lineage, place))
    store.follow_with(follower)
    follower.follow_all()
    if isinstance(follower.problem, StoreUnusable):
        raise follower.problem


def url_in(disk: Disk) -> str:
    """Return the URL of the SQLite file in the store's directory."""
    path = disk.local_path(DATABASE)
    if not path:
        raise StoreUnusable("state_url_missing", "set transaction.state_url to a database")
    return f"sqlite:///{path}"


def place_of(disk: Disk) -> str:
    """Return text that is the same for each start on this directory, and for no copy of it."""
    path = disk.local_path("")
    if not path:
        return ""
    found = Path(path).stat()
    return f"{socket.gethostname()}:{found.st_dev}:{found.st_ino}"
