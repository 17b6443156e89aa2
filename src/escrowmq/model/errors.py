"""Errors, sorted by who must act.

``code`` is stable snake_case: it goes on the wire and is listed in docs/reference/errors.md with
its cause and remedy. ``fields`` are the facts. The text consists of the code, the message and the
facts.
"""

from __future__ import annotations


class EscrowError(Exception):
    """Base class of every error that EscrowMQ raises on purpose."""

    def __init__(self, code: str, /, message: str = "", **fields: object) -> None:
        self.code = code
        self.message = message
        self.fields = fields
        facts = ", ".join(f"{name}={value!r}" for name, value in fields.items())
        super().__init__(": ".join(part for part in (code, message, facts) if part))


class RequestRefused(EscrowError):
    """The caller asked for something that cannot be done; repeating it will not help."""


class Unavailable(EscrowError):
    """Nothing was done; the same request may succeed later."""

    def __init__(
        self, code: str, /, message: str = "", *, retry_after_ms: int = 1_000, **fields: object
    ) -> None:
        self.retry_after_ms = retry_after_ms
        super().__init__(code, message, **fields)


class OutcomeUnknown(EscrowError):
    """The request may or may not have taken effect: check before you repeat it."""


class StoreCorrupt(EscrowError):
    """Durable bytes are damaged. The process stops; an operator must inspect the store."""


class StoreUnusable(EscrowError):
    """The data directory cannot be served as it is: locked, read-only, foreign, or too new."""


class ProtocolViolation(EscrowError):
    """The peer sent bytes that the protocol does not allow."""
