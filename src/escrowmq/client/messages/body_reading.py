"""A handler's argument: the message, or its body as the type in the handler's annotation.

def ship(message): ...                      # the message
def ship(message: Received): ...            # the message
def ship(message: Received[Order]): ...     # the message, with message.value as an Order
def ship(order: Order): ...                 # the body as an Order
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, get_args, get_origin, get_type_hints

from escrowmq.client.messages.codecs import JSON, Codec, check_codec, codec_for
from escrowmq.client.messages.handling import YIELDS
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.messages.wire_form import CONTENT_TYPE
from escrowmq.model.errors import RequestRefused

#: Annotations that leave the message as it is.
_WHOLE = (inspect.Parameter.empty, Received, Any, object)


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Decoder of message bodies into one type."""

    body_type: Any
    codecs: Sequence[Codec] = (JSON,)

    def read(self, message: Received) -> Any:  # noqa: ANN401 - an object of that type
        """Return the body as an object. Bytes and text do not pass through a codec."""
        try:
            if self.body_type is bytes:
                return message.body
            if self.body_type is str:
                return message.body.decode()
            codec = codec_for(message.properties.get(CONTENT_TYPE, ""), self.codecs)
            return codec.decode(message.body, self.body_type)
        except Exception as error:
            raise RequestRefused(
                "body_not_decodable",
                str(error) or type(error).__name__,
                topic=message.topic,
                message_id=message.message_id,
                body_type=_name_of(self.body_type),
            ) from error

    def typed(self, message: Received) -> Received[Any]:
        """Return the message with its body decoded."""
        return replace(message, decoded=self.read(message))


@dataclass(frozen=True, slots=True)
class MessageHandler:
    """A user's function and its kind of argument. Two handlers of one function are equal."""

    call: Callable[..., object]
    #: None if the function takes the message as it is.
    reader: BodyReader | None = field(default=None, compare=False)
    #: True if the function takes the message with its decoded body, False if the body alone.
    takes_message: bool = field(default=True, compare=False)

    @property
    def is_async(self) -> bool:
        """Whether the function is awaited; other functions run in threads."""
        # An object may have an async ``__call__``.
        return inspect.iscoroutinefunction(self.call) or inspect.iscoroutinefunction(
            getattr(self.call, "__call__", None)  # noqa: B004 - this is not a test for callable
        )

    def __call__(self, message: Received) -> Any:  # noqa: ANN401 - what the function returns
        """Call the function; raise ``body_not_decodable`` if the body does not fit its type."""
        if self.reader is None:
            return self.call(message)
        if self.takes_message:
            return self.call(self.reader.typed(message))
        return self.call(self.reader.read(message))


def handler_of(function: Callable[..., object], codecs: Sequence[Codec]) -> MessageHandler:
    """Make the handler of a function, by the annotation of its first parameter."""
    _check_callable(function)
    annotation = _annotation_of(function)
    if any(annotation is one for one in _WHOLE):
        return MessageHandler(function)
    if annotation is Message:
        raise _illegal(annotation, "Message is for sending: annotate it with Received")
    takes_message = get_origin(annotation) is Received
    body_type = get_args(annotation)[0] if takes_message else annotation
    if _holds_received(body_type):
        raise _illegal(annotation, "annotate it with Received, Received[YourType] or YourType")
    if body_type is Any:
        return MessageHandler(function)
    return MessageHandler(function, reader_of(body_type, codecs), takes_message)


def reader_of(body_type: Any, codecs: Sequence[Codec]) -> BodyReader:  # noqa: ANN401 - any type
    """Make a reader, and refuse a type that the first codec can never decode."""
    check = getattr(codecs[0], "check_type", None)
    if check is not None and body_type not in (bytes, str):
        try:
            check(body_type)
        except Exception as error:
            raise _illegal(body_type, str(error)) from error
    return BodyReader(body_type, codecs)


def codecs_of(codec: Codec | Sequence[Codec] | None) -> tuple[Codec, ...]:
    """Return a tuple of codecs from one codec, several, or None for the default."""
    if codec is None:
        return (JSON,)
    if not isinstance(codec, Sequence) or isinstance(codec, str):
        check_codec(codec, "consumer")
        return (codec,)
    codecs = tuple(codec)
    if not codecs:
        raise RequestRefused("bad_config", "name at least one codec", key="consumer.codec")
    for one in codecs:
        check_codec(one, "consumer")
    return codecs


def _annotation_of(function: Callable[..., object]) -> Any:  # noqa: ANN401 - any annotation
    """Return the evaluated annotation of the first parameter."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return inspect.Parameter.empty
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        return inspect.Parameter.empty
    annotation = parameters[0].annotation
    if not isinstance(annotation, str):
        return annotation

    def holder() -> None: ...

    holder.__annotations__ = {"body": annotation}
    # Supply our own names: a program may import them under TYPE_CHECKING only.
    names = {"Received": Received, "Message": Message, **_globals_of(function)}
    try:
        hints = get_type_hints(holder, names, include_extras=True)
    except Exception as error:
        if annotation.rpartition(".")[2] == "Received":
            return Received
        raise _illegal(
            annotation,
            f"{error}: define the type at the top of the module, and not under TYPE_CHECKING",
        ) from error
    return hints["body"]


def _check_callable(function: object) -> None:
    """Refuse a function that would fail, or do nothing, for every message."""
    why = ""
    if not callable(function):
        why = "a handler is a function"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        why = YIELDS
    else:
        # Some built-in functions have no signature.
        with suppress(ValueError):
            try:
                inspect.signature(function).bind(None)
            except TypeError as error:
                why = f"a handler is called with one argument: {error}"
    if why:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise RequestRefused("handler_illegal", why, handler=name)


def _holds_received(annotation: object) -> bool:
    """Whether the type contains Received, as ``Received | None`` does. No body is a message."""
    is_it = annotation is Received or get_origin(annotation) is Received
    return is_it or any(map(_holds_received, get_args(annotation)))


def _globals_of(function: Any) -> dict[str, Any]:  # noqa: ANN401 - any callable
    """Return the names that a function's annotations may refer to."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__globals__"):
        # A method has the globals of its function, and a callable object those of ``__call__``.
        function = getattr(function, "__func__", None) or type(function).__call__
    found: dict[str, Any] = getattr(function, "__globals__", {})
    return found


def _illegal(annotation: object, why: str) -> RequestRefused:
    return RequestRefused("handler_annotation_illegal", why, annotation=_name_of(annotation))


def _name_of(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
