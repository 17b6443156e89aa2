"""What a request needs: actions on resources, all of them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from escrowmq.model.users import Action, ResourceKind

WHOLE = ""
"""The name in a need that is about every resource of its kind, such as a list of all topics."""


class Need(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An action on one resource."""

    action: Action
    kind: ResourceKind
    #: A policy that names some of the resources does not match ``WHOLE``, only one for all does.
    name: str = WHOLE

    def __str__(self) -> str:
        """The need as policies are written."""
        return (
            f"{self.action} on {self.kind}:{self.name}"
            if self.name
            else (f"{self.action} on {self.kind}")
        )


class OneOf(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Needs of which one is enough."""

    needs: tuple[Need, ...]


Needs: TypeAlias = tuple[Need | OneOf, ...]
"""Everything that one request needs; a request without needs is open to every user."""
