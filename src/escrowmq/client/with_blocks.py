"""The ``with`` forms of clients and transactions: an entry, and an end that sees the error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class WithBlock:
    """An object for a ``with`` block."""

    def _enter(self) -> None:
        """Do the work of the entry."""

    def _leave(self, error: BaseException | None) -> None:
        """Do the work of the end; ``error`` is the exception that left the block, or None."""

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(error)


class AsyncWithBlock:
    """An object for an ``async with`` block."""

    async def _enter(self) -> None:
        """Do the work of the entry."""

    async def _leave(self, error: BaseException | None) -> None:
        """Do the work of the end; ``error`` is the exception that left the block, or None."""

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave(error)
