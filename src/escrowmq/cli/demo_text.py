"""What ``escrowmq demo`` tells: each step, its figures, and what it shows."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from escrowmq.cli.demo_judge import Acknowledged, AskedAgain, Compared
from escrowmq.cli.demo_writer import BATCH, parts
from escrowmq.store.recovery import Found
from escrowmq.transaction.commands import Settled
from escrowmq.transaction.states import State

_INDENT = "   "


class Teller:
    """Prints step by step."""

    def __init__(self, orders: int) -> None:
        self._console = Console(highlight=False)
        self._step = 0
        self._console.print("[bold]EscrowMQ demo:[/] a process is killed in the middle of its work")
        self._orders = orders

    def what_was_written(self, said: Acknowledged) -> None:
        """The child's life."""
        halves = sum(parts(order) for order in said.held)
        self._heading(f"A shop takes {self._orders:,} orders and sends their messages first")
        self._figure(f"{len(said.held):,} transactions with {halves:,} half messages are held")
        self._shows("They are flushed to disk before the shop hears so, and nobody can read them.")
        self._heading(f"The shop's database decides; {BATCH} decisions share a flush")
        self._figure(
            f"{len(said.committed):,} commits and {len(said.rolled_back):,} rollbacks acknowledged"
        )
        self._figure(f"then SIGKILL, half way through writing {len(said.in_flight):,} more")
        self._shows("Those had no reply yet: the shop may find them done or not done.")

    def what_was_recovered(self, found: Found, seconds: float) -> None:
        """The restart."""
        self._heading("A new process opens the same directory")
        self._figure(f"{found.frames:,} frames replayed in {seconds * 1_000:,.0f} ms")
        self._figure(f"{found.cut_bytes:,} bytes of a torn frame cut off the end of the log")
        self._shows("The log alone says what happened; an unfinished write never counts.")

    def what_was_found(self, said: Acknowledged, compared: Compared) -> None:
        """The comparison."""
        self._heading("What is there is compared with what was acknowledged")
        rows = [
            (name, before, compared.told[state], compared.in_flight[state])
            for name, before, state in (
                ("committed", len(said.committed), State.COMMITTED),
                ("rolled back", len(said.rolled_back), State.ROLLED_BACK),
                ("undecided, to be asked about", len(said.held - said.sent), State.PREPARED),
            )
        ]
        readable = sum(parts(order) for order in said.committed)
        rows.append(
            ("messages to read", readable, compared.told_visible, compared.in_flight_visible)
        )
        table = Table(box=None, pad_edge=False, header_style="none")
        table.add_column(_INDENT)
        for title in ("acknowledged", "found", "more without a reply"):
            table.add_column(title, justify="right")
        for name, *figures in rows:
            table.add_row(_INDENT + name, *(f"{figure:,}" for figure in figures))
        self._console.print(table)
        self._shows("Consumers read the messages of committed orders, each once, and no others.")

    def what_is_answered(self, asked: AskedAgain) -> None:
        """The decision, sent again."""
        self._heading("The shop, unsure, sends a decision again, and then the opposite one")
        settled, refused = asked.commit.reply, asked.rollback.refused
        if isinstance(settled, Settled):
            self._figure(f"commit {asked.name}: {settled.state.label} by {settled.by}, as before")
        if refused is not None:
            self._figure(f"roll back {asked.name}: refused, {refused.code}")
        self._shows("A transaction is decided once, and the decision outlives the process.")

    def verdict(self, compared: Compared) -> None:
        """The end."""
        self._console.print()
        if not compared.broken:
            self._console.print(
                "[bold green]Nothing lost, nothing doubled, nothing visible too early.[/]"
            )
            return
        self._console.print("[bold red]The promise is broken:[/]")
        for sentence in compared.broken[:20]:
            self._figure(sentence)

    def _heading(self, text: str) -> None:
        self._step += 1
        self._console.print(f"\n[bold]{self._step}. {text}[/]")

    def _figure(self, text: str) -> None:
        self._console.print(_INDENT + text)

    def _shows(self, text: str) -> None:
        self._console.print(f"{_INDENT}[dim italic]{text}[/]")
