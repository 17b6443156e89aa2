"""Errors of peers; each says who must act."""

from __future__ import annotations

from pathlib import Path

LOG_TAIL_LINES = 40
EVENT_CHARS_MAX = 240


class InteropError(Exception):
    """Base of all errors here."""


class ToolMissing(InteropError):
    """The machine lacks a program that a peer needs: install it."""

    def __init__(self, tool: str, needed_for: str) -> None:
        super().__init__(f"{tool} is not on the PATH, and {needed_for} needs it")
        self.tool = tool


class BuildFailed(InteropError):
    """A peer could not be built: read the tool's output."""

    def __init__(self, peer: str, printed: str) -> None:
        super().__init__(f"{peer} could not be built:\n{tail(printed)}")
        self.peer = peer


class PeerRefused(InteropError):
    """A stock client refused; ``code`` is the broker's if the broker refused."""

    def __init__(self, command: str, kind: str, message: str, code: int | None) -> None:
        super().__init__(f"{command}: {kind}: {message}")
        self.kind = kind
        self.message = message
        self.code = code


class ProcessDied(InteropError):
    """A process ended before it was told to."""

    def __init__(self, name: str, status: int | None, log: Path) -> None:
        super().__init__(f"{name} ended with {status}:\n{tail(read(log))}")
        self.status = status


class WaitedInVain(InteropError):
    """An expected event did not come in time; ``seen`` holds the last events that did."""

    def __init__(self, what: str, timeout_s: float, seen: list[object]) -> None:
        lines = "\n".join(f"  {str(event)[:EVENT_CHARS_MAX]}" for event in seen[-LOG_TAIL_LINES:])
        super().__init__(f"no {what} within {timeout_s} s; seen:\n{lines or '  nothing'}")


class Diverged(InteropError):
    """A broker broke a scenario's promise."""


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def tail(text: str) -> str:
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
