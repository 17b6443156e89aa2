"""Encoding of a message's body, key and check time into the form that is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from escrowmq.client.messages.codecs import Codec, failing_path
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.limits import BODY_BYTES_MAX

CONTENT_TYPE = "content-type"
"""The property with the media type of a body, by which consumers choose the codec."""

KeyValue: TypeAlias = str | int | UUID
Key: TypeAlias = KeyValue | Callable[..., KeyValue]
"""A key, or a function that returns it: with the body as its argument, or without one.

A function without a parameter is called when the message leaves, like a body's function.
"""

#: Types sent unchanged; text is sent as UTF-8.
PAYLOADS = (bytes, str, bytearray, memoryview)
#: Refused types. A function without ``return`` returns None; a number or a class is likely a
#: mistake.
_NO_BODIES = (type(None), bool, int, float, complex, type)


#: Longest age of a half message at its first check; the producer's setting has the same limit.
CHECK_AFTER_S_MAX = 86_400


class WireForm(NamedTuple):
    """The body and the key of a message as the broker gets them."""

    body: bytes
    key: str
    #: Empty for bytes and text.
    content_type: str


class Sealed(NamedTuple):
    """An encoded body, and the value that was encoded."""

    #: The message's body as given: an object, or the function that returned the object.
    source: object
    value: object
    data: bytes
    content_type: str


def seal(body: Any, codec: Codec, topic: str) -> Sealed:  # noqa: ANN401 - any body
    """Encode a body; if it is a function, call it first."""
    is_function = callable(body) and not isinstance(body, type)
    value = body() if is_function else body
    if isinstance(value, PAYLOADS):
        data = _text_bytes(value, topic) if isinstance(value, str) else bytes(value)
        content_type = ""
    elif isinstance(value, _NO_BODIES):
        kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise RequestRefused(
            "body_illegal", "give bytes, text, or an object to encode", topic=topic, type=kind
        )
    else:
        data = _encoded(value, codec, topic)
        content_type = codec.content_type
    if len(data) > BODY_BYTES_MAX:
        raise RequestRefused(
            "body_too_large", topic=topic, bytes=len(data), bytes_max=BODY_BYTES_MAX
        )
    return Sealed(body, value, data, content_type)


def _text_bytes(text: str, topic: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RequestRefused(
            "body_not_encodable", str(error), topic=topic, type="str", path="$"
        ) from error


def _encoded(value: object, codec: Codec, topic: str) -> bytes:
    try:
        data = codec.encode(value)
    except Exception as error:
        raise RequestRefused(
            "body_not_encodable",
            str(error) or type(error).__name__,
            topic=topic,
            type=type(value).__name__,
            path=failing_path(value, codec),
            content_type=codec.content_type,
        ) from error
    if not isinstance(data, bytes):
        raise RequestRefused(
            "body_not_encodable",
            "the codec must return bytes",
            topic=topic,
            type=type(value).__name__,
            returned=type(data).__name__,
            content_type=codec.content_type,
        )
    return data


def takes_body(make_key: Callable[..., object]) -> bool:
    """Whether a key function has a parameter for the body."""
    try:
        parameters = inspect.signature(make_key).parameters.values()
    except (TypeError, ValueError):
        # Some callables have no signature, such as operator.attrgetter, which takes the body.
        return True
    return any(one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD) for one in parameters)


def key_text(key: object) -> str:
    """Return a key as the text that is sent."""
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        # Some integer enums return their name from str().
        return str(int(key))
    if isinstance(key, UUID):
        return str(key)
    raise RequestRefused(
        "key_illegal", "a key is text, an integer or a UUID", type=type(key).__name__
    )


def check_after_text(after_s: object) -> str:
    """Return the age of a half message at its first check in whole seconds, rounded up."""
    if not isinstance(after_s, int | float) or isinstance(after_s, bool):
        raise check_after_illegal(repr(after_s)[:64], "give a number of seconds")
    if not 0 <= after_s <= CHECK_AFTER_S_MAX:
        raise check_after_illegal(after_s, f"must be from 0 to {CHECK_AFTER_S_MAX} seconds")
    return str(ceil(after_s))


def check_after_illegal(after_s: object, why: str) -> RequestRefused:
    """Return the error about a message's ``check_after_s``."""
    return RequestRefused("check_after_illegal", why, check_after_s=after_s)
