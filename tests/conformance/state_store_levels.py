"""Levels of scenarios whose due transactions come from mapped files, or from a database."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.conformance.broker_checks import BrokerChecksLevel
from tests.unit.broker.wire import eventually


class MappedLevel(BrokerChecksLevel):
    """A broker that checks by itself, with mapped files."""

    changes: ClassVar[dict[str, Any]] = {
        "policy": {"checked_by": "broker", "state_store": "mapped"}
    }

    async def _round(self) -> None:
        following = self._server.broker.writer.following
        assert following is not None
        follower = following.follower
        await eventually(lambda: follower.is_equal and not follower.lag_rows)
        await super()._round()
        assert follower.disagreed == 0


class SqlLevel(MappedLevel):
    """The same with a database: SQLite in the store's directory."""

    changes: ClassVar[dict[str, Any]] = {"policy": {"checked_by": "broker", "state_store": "sql"}}


def sql_level_at(url: str) -> type[SqlLevel]:
    """Return the same level with another database."""

    class OtherSqlLevel(SqlLevel):
        changes: ClassVar[dict[str, Any]] = {
            "policy": {**SqlLevel.changes["policy"], "state_url": url}
        }

    return OtherSqlLevel
