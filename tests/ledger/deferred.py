"""Constraints that a database checks at COMMIT, which it then refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it brings no types
import psycopg
import sqlalchemy
from sqlalchemy import event

from tests.ledger.shops import Shop

#: The errors of the drivers and SQLAlchemy for a violated constraint.
INTEGRITY = (
    sqlite3.IntegrityError,
    psycopg.IntegrityError,
    asyncpg.IntegrityConstraintViolationError,
    sqlalchemy.exc.IntegrityError,
)

FOREIGN = "INSERT INTO items VALUES (1, 99)"


@contextmanager
def deferring_items(shop: Shop) -> Iterator[None]:
    shop.run(
        "CREATE TABLE IF NOT EXISTS items (number integer PRIMARY KEY, of integer"
        " REFERENCES orders (number) DEFERRABLE INITIALLY DEFERRED)"
    )
    yield
    shop.run("DROP TABLE items")


def look_at_foreign_keys(shop: Shop, execute: Callable[[str], Any]) -> None:
    if shop.kind == "sqlite":
        execute("PRAGMA foreign_keys = on")


def always_look_at_foreign_keys(shop: Shop, engine: sqlalchemy.Engine) -> None:
    if shop.kind == "sqlite":
        event.listen(
            engine, "connect", lambda made, _: made.cursor().execute("PRAGMA foreign_keys = on")
        )
