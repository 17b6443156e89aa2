"""Codecs: they encode objects as message bodies and decode bodies into objects.

``JsonCodec`` is the default of producers and consumers. Bytes and text never pass through a codec:
they are sent and received unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any, Protocol

import msgspec

from escrowmq.model.errors import RequestRefused

DECODERS_MAX = 256
"""Maximum number of cached decoders; the cache is cleared when it is full."""

JSON_TYPE = "application/json"
_TEXT = str | bytes | bytearray | memoryview


class Codec(Protocol):
    """One encoding. Threads share a codec, so it keeps no state between calls.

    A codec may also have ``check_type(body_type)``. The consumer calls it when a handler
    subscribes; it raises TypeError for an annotation that no body can be decoded into.
    """

    @property
    def content_type(self) -> str:
        """The media type. Each message that this codec encoded carries it as ``content-type``."""

    def encode(self, body: Any, /) -> bytes:  # noqa: ANN401 - any object that a user sends
        """Return the object as bytes. Any exception means that the object cannot be sent."""

    def decode(self, data: bytes, body_type: Any, /) -> Any:  # noqa: ANN401 - an object of that type
        """Decode the bytes into an object of the type. Any exception means that they do not fit."""


class JsonCodec:
    """JSON for msgspec structs, dataclasses, pydantic models, mappings and sequences.

    ``enc_hook`` and ``dec_hook`` are msgspec's hooks: they encode and decode your own types. NaN
    and infinity are refused, because JSON cannot represent them.
    """

    content_type = JSON_TYPE

    def __init__(
        self,
        *,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
    ) -> None:
        self._enc_hook = enc_hook
        self._dec_hook = dec_hook
        self._encoder = msgspec.json.Encoder(enc_hook=self._encode_other)
        self._decoders: dict[object, msgspec.json.Decoder[Any]] = {}

    def encode(self, body: Any, /) -> bytes:  # noqa: ANN401 - as the protocol says
        """Return the object as JSON."""
        if is_pydantic(type(body)):
            return _encoded_model(body)
        data = self._encoder.encode(body)
        _check_finite(data, lambda: body)
        return data

    def decode(self, data: bytes, body_type: Any, /) -> Any:  # noqa: ANN401 - as the protocol says
        """Parse JSON and validate it against the type."""
        if is_pydantic(body_type):
            return body_type.model_validate_json(data)
        return self._decoder(body_type).decode(data)

    def check_type(self, body_type: Any, /) -> None:  # noqa: ANN401 - any annotation
        """Refuse a type that no JSON can be decoded into."""
        if is_pydantic(body_type):
            return
        self._decoder(body_type)
        unknown = _unknown_class(msgspec.inspect.type_info(body_type), set())
        if unknown is not None and self._dec_hook is None:
            raise TypeError(
                f"JSON cannot be decoded into a {unknown.__name__}: "
                "JSON is decoded into structs, dataclasses, models, dicts and lists"
            )

    def _decoder(self, body_type: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - any annotation
        known = self._decoders.get(body_type)
        if known is None:
            if len(self._decoders) >= DECODERS_MAX:
                self._decoders.clear()
            known = msgspec.json.Decoder(body_type, dec_hook=self._decode_other)
            self._decoders[body_type] = known
        return known

    def _encode_other(self, part: Any) -> Any:  # noqa: ANN401 - what msgspec does not know
        if is_pydantic(type(part)):
            return msgspec.Raw(_encoded_model(part))
        if isinstance(part, Mapping):
            return dict(part)
        if self._enc_hook is not None:
            return self._enc_hook(part)
        if isinstance(part, tuple | frozenset):
            # msgspec encodes these as arrays; only one that is the key of a dict reaches this hook.
            raise TypeError(f"keys in JSON are text or numbers, not a {type(part).__name__}")
        raise TypeError(f"JSON cannot hold an object of type {type(part).__name__}")

    def _decode_other(self, kind: Any, part: Any) -> Any:  # noqa: ANN401 - as above
        if is_pydantic(kind):
            # Validate as JSON: a strict model takes a date or a UUID only from JSON text.
            return kind.model_validate_json(msgspec.json.encode(part))
        if self._dec_hook is not None:
            return self._dec_hook(kind, part)
        # msgspec expects this error from a hook for an unknown type, and names the type itself.
        raise NotImplementedError


JSON = JsonCodec()


def check_codec(codec: object, owner: str) -> None:
    """Refuse an object that is not a codec, since every message would fail."""
    if isinstance(codec, type):
        why = f"give a codec, not its class: {codec.__name__}()"
    elif isinstance(getattr(codec, "content_type", None), str) and all(
        callable(getattr(codec, name, None)) for name in ("encode", "decode")
    ):
        return
    else:
        why = "a codec has content_type, encode and decode"
    raise RequestRefused("bad_config", why, key=f"{owner}.codec", value=repr(codec)[:256])


def codec_for(content_type: str, codecs: Sequence[Codec]) -> Codec:
    """Return the codec of a content type; the first codec if the message has none."""
    if not content_type:
        return codecs[0]
    wanted = _media_type(content_type)
    for codec in codecs:
        if _media_type(codec.content_type) == wanted:
            return codec
    known = ", ".join(codec.content_type for codec in codecs)
    raise TypeError(f"the content type is {content_type}, and the codec is for {known}")


def failing_path(body: object, codec: Codec) -> str:
    """Return the path of the part that a codec cannot encode, such as ``$.lines[2].price``."""
    path, part = "$", body
    for _ in range(DEPTH_MAX):
        for name, inner in _parts(part):
            if not _can_encode(inner, codec):
                path, part = f"{path}{name}", inner
                break
        else:
            break
    return path


DEPTH_MAX = 32
"""Maximum number of steps in a path that an error names."""


def is_pydantic(kind: Any) -> bool:  # noqa: ANN401 - any type or annotation
    """Whether the type is a pydantic model's class, without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json")


def _media_type(content_type: str) -> str:
    kind = content_type.partition(";")[0].strip().lower()
    return JSON_TYPE if kind == "text/json" or kind.endswith("+json") else kind


def _can_encode(part: object, codec: Codec) -> bool:
    try:
        codec.encode(part)
    except Exception:  # noqa: BLE001 - whatever a codec raises
        return False
    return True


def _encoded_model(model: Any) -> bytes:  # noqa: ANN401 - a pydantic model
    data = bytes(model.model_dump_json(by_alias=True), "utf-8")
    if model.model_config.get("ser_json_inf_nan", "null") == "null":
        # Check the dump: fields that the model excludes or serializes its own way do not count.
        _check_finite(data, model.model_dump)
    return data


def _check_finite(data: bytes, make_body: Callable[[], object]) -> None:
    """Refuse NaN and infinity, which msgspec and pydantic write as null."""
    if b"null" in data and _has_non_finite(make_body()):
        raise ValueError("JSON has neither NaN nor infinity")


def _unknown_class(kind: msgspec.inspect.Type, seen: set[int]) -> type | None:
    """Return a class in the type that msgspec needs a hook for, or None if there is none."""
    if id(kind) in seen:
        return None
    seen.add(id(kind))
    inner: list[msgspec.inspect.Type] = []
    match kind:
        case msgspec.inspect.CustomType():
            return None if is_pydantic(kind.cls) else kind.cls
        case msgspec.inspect.UnionType():
            found = [_unknown_class(one, seen) for one in kind.types]
            return found[0] if all(found) else None
        case msgspec.inspect.CollectionType():
            inner = [kind.item_type]
        case msgspec.inspect.TupleType():
            inner = list(kind.item_types)
        case msgspec.inspect.DictType():
            inner = [kind.key_type, kind.value_type]
        case (
            msgspec.inspect.StructType()
            | msgspec.inspect.DataclassType()
            | msgspec.inspect.TypedDictType()
            | msgspec.inspect.NamedTupleType()
        ):
            inner = [field.type for field in kind.fields if field.required]
    return next(filter(None, (_unknown_class(one, seen) for one in inner)), None)


def _has_non_finite(body: object) -> bool:
    parts = [body]
    while parts:
        part = parts.pop()
        if isinstance(part, float):
            if not math.isfinite(part):
                return True
        # A nested model was checked when it was encoded.
        elif part is not None and not isinstance(part, int | _TEXT) and not is_pydantic(type(part)):
            parts += [inner for _, inner in _parts(part)]
    return False


def _parts(part: object) -> Iterator[tuple[str, object]]:
    """Yield the parts of an object, each with its step in the path."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            is_name = isinstance(key, str) and key.isidentifier()
            yield (f".{key}" if is_name else f"[{key!r}]"), value
    elif isinstance(part, Sequence | AbstractSet) and not isinstance(part, _TEXT):
        yield from ((f"[{index}]", value) for index, value in enumerate(part))
    else:
        yield from ((f".{name}", getattr(part, name, None)) for name in _field_names(part))


def _field_names(part: object) -> list[str]:
    kind = type(part)
    if isinstance(part, msgspec.Struct):
        return list(part.__struct_fields__)
    if is_dataclass(kind):
        return [field.name for field in dataclass_fields(kind)]
    return list(getattr(kind, "model_fields", ())) if is_pydantic(kind) else []
