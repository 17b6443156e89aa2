"""Users of a running broker as requests need them: their opened secrets, and what they may do.

The durable catalog has the users. Everything here is made from it when a user's request comes, and
again after the user has changed, so a change counts from the next request on.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.access.deciding import AccessDecision, decide
from escrowmq.access.needs import Need
from escrowmq.model.credentials import LOCAL_ADMIN
from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.model.users import Effect, SealedSecret, User, UserKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from escrowmq.access.matching import Address
    from escrowmq.access.needs import Needs, OneOf
    from escrowmq.broker.access.secret_box import SecretKeeper
    from escrowmq.model.secret import Secret
    from escrowmq.transaction.memory.catalog import Catalog, KeptUser

log = event_log(__name__)

DECISIONS_MAX = 1_024
"""Decisions that are remembered for each user. With more, all of them are forgotten."""
_NO_SECRET = SealedSecret("none", bytes(12), bytes(16))
_ADMIN = User(
    name=LOCAL_ADMIN,
    kind=UserKind.SUPER,
    is_enabled=True,
    access_key=LOCAL_ADMIN,
    secrets=(_NO_SECRET,),
)


class Denied(NamedTuple):
    """A decision that refuses: what was needed, and why it is not allowed."""

    need: Need
    decision: AccessDecision


class KnownUser:
    """One version of one user."""

    __slots__ = ("_decisions", "kept", "keys", "user")

    def __init__(self, user: User, keys: tuple[bytes, ...], kept: KeptUser | None) -> None:
        self.user = user
        #: The secrets that are valid, as keys of signatures.
        self.keys = keys
        #: The catalog's entry that this was made from; None for the local admin.
        self.kept = kept
        self._decisions: dict[tuple[Needs, str], Denied | None] = {}

    def __repr__(self) -> str:
        """Leave out the keys, because a repr ends in logs."""
        return f"KnownUser({self.user.name!r})"

    @property
    def name(self) -> str:
        """The user's name."""
        return self.user.name

    @property
    def is_super(self) -> bool:
        """Whether no policy limits the user."""
        return self.user.kind is UserKind.SUPER

    def denied(self, needs: Needs, host: str) -> Denied | None:
        """Return which need is not met for a client at this host; None if all are."""
        key = needs, host
        try:
            return self._decisions[key]
        except KeyError:
            pass
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        found = self._decisions[key] = self._decide(needs, address_of(host))
        return found

    def _decide(self, needs: Needs, address: Address) -> Denied | None:
        for need in needs:
            found = self._decide_one(need, address)
            if found is not None:
                return found
        return None

    def _decide_one(self, need: Need | OneOf, address: Address) -> Denied | None:
        first = None
        for one in (need,) if isinstance(need, Need) else need.needs:
            decision = decide(self.user, one, address)
            if decision.is_allowed:
                return None
            first = first or Denied(one, decision)
        return first


class KnownUsers:
    """Users by access key, with their secrets opened."""

    def __init__(self, catalog: Catalog, keeper: SecretKeeper, admin_token: Secret | None) -> None:
        self._catalog = catalog
        self._keeper = keeper
        self._admin = None
        if admin_token is not None:
            self._admin = KnownUser(_ADMIN, (admin_token.reveal().encode(),), None)
        #: By name; at most as many as the catalog has.
        self._known: dict[str, KnownUser] = {}

    def by_access_key(self, access_key: str) -> KnownUser | None:
        """Return the user with this access key."""
        if access_key == LOCAL_ADMIN:
            return self._admin
        return self.named(self._catalog.access_keys.get(access_key, ""))

    def by_certificate(self, subject: str) -> KnownUser | None:
        """Return the user that a client certificate with this subject stands for."""
        return self.named(self._catalog.certificates.get(subject, ""))

    def named(self, name: str) -> KnownUser | None:
        """Return the user of this name, as it is now."""
        if name == LOCAL_ADMIN:
            return self._admin
        kept = self._catalog.users.get(name)
        known = self._known.get(name)
        if kept is None:
            if known is not None:
                del self._known[name]
            return None
        if known is None or known.kept is not kept:
            known = self._known[name] = KnownUser(kept.user, self._opened(kept.user), kept)
        return known

    def is_current(self, known: KnownUser) -> bool:
        """Whether a user is still as it was."""
        return known.kept is None or self._catalog.users.get(known.name) is known.kept

    def _opened(self, user: User) -> tuple[bytes, ...]:
        """Open the secrets; leave out those that cannot be opened, and log why."""
        keys = []
        for sealed in user.secrets:
            try:
                keys.append(self._keeper.box.unseal(sealed, user.name).reveal().encode())
            except EscrowError as error:
                log.error(  # noqa: TRY400 - the error says all
                    "user_secret_unreadable", extra={"user": user.name, "why": str(error)}
                )
        return tuple(keys)

    @property
    def users(self) -> Mapping[str, KeptUser]:
        """All users."""
        return self._catalog.users


def is_less(before: User, after: User | None) -> bool:
    """Whether a change may have taken something away from a user."""
    if after is None or not after.is_enabled:
        return True
    if after.kind is UserKind.SUPER:
        return False
    if before.kind is UserKind.SUPER:
        return True
    denials = [one for one in after.policies if one.effect is Effect.DENY]
    return (
        not set(before.roles) <= set(after.roles)
        or not {one for one in before.policies if one.effect is Effect.ALLOW} <= set(after.policies)
        or not set(denials) <= set(before.policies)
        or not set(after.certificate_names) >= set(before.certificate_names)
    )


def address_of(host: str) -> Address:
    """Return the address of a host; None if it is unknown."""
    try:
        # A link-local address may name its interface.
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def is_local(host: str) -> bool:
    """Whether a client is on this machine."""
    address = address_of(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback
