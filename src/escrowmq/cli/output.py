"""How commands print."""

from __future__ import annotations

from enum import StrEnum


class Output(StrEnum):
    """For people, or for programs."""

    TABLE = "table"
    JSON = "json"
