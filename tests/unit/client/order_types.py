"""The same order in every kind of class that a body may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic


class StructOrder(msgspec.Struct):
    id: int
    items: list[str] = []


@dataclass
class DataclassOrder:
    id: int
    items: list[str]


class ModelOrder(pydantic.BaseModel):
    id: int
    items: list[str]


class DictOrder(TypedDict):
    id: int
    items: list[str]


FIELDS: dict[str, Any] = {"id": 42, "items": ["tea"]}
JSON_BODY = b'{"id":42,"items":["tea"]}'
DICT_ORDER: DictOrder = {"id": 42, "items": ["tea"]}

#: A body and a type: the encoded body, decoded as the type, equals the body.
ORDERS: list[tuple[object, Any]] = [
    (StructOrder(**FIELDS), StructOrder),
    (DataclassOrder(**FIELDS), DataclassOrder),
    (ModelOrder(**FIELDS), ModelOrder),
    (DICT_ORDER, DictOrder),
    (FIELDS, dict),
    (FIELDS, dict[str, Any]),
]
