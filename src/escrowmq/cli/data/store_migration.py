"""The work of ``escrowmq store migrate``."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from escrowmq.cli.shapes.tool_shapes import StateMigrationShape
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.recovery import NO_HOST, open_store
from escrowmq.store.states.migrating import migrate_states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from escrowmq.store.config import StoreConfig
    from escrowmq.transaction.policy import CheckPolicy


class StateMigration:
    """One migration of the store in a directory."""

    def __init__(self, store: Path, config: StoreConfig, policy: CheckPolicy) -> None:
        self._path = store
        self._config = config
        self._policy = policy

    def run(self) -> StateMigrationShape:
        """Fill the chosen state store and compare each record; show progress on a terminal."""
        by_table = replace(self._policy, state_store="table")
        store, _ = open_store(OsDisk(self._path), self._config, by_table, NO_HOST)
        try:
            with _bar() as told:
                done = migrate_states(store, self._policy.state_store, told, self._policy.state_url)
        finally:
            store.close()
        return StateMigrationShape(
            state_store=self._policy.state_store, parts=done.parts, undecided=done.undecided
        )

    def facts(self, done: StateMigrationShape) -> dict[str, str]:
        """Return the text lines for an operator, by name."""
        return {
            "state store": done.state_store,
            "undecided": f"{done.undecided:,} transactions, each compared",
            "now set": f"transaction.state_store = {done.state_store}",
        }


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("ranges copied and compared")

        def told(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield told
