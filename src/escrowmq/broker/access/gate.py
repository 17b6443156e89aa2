"""The gate: who makes a request, and whether that user may do what it needs.

Every protocol asks the gate twice. ``admit_…`` finds the user from the credentials of a request.
``require`` compares what the request needs with the user's policies. A connection belongs to the
user of its first request. Without access control there is no gate.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from escrowmq.access.deciding import Why
from escrowmq.access.parsing import policy_texts
from escrowmq.broker.access.common_needs import on_group
from escrowmq.broker.access.failures import Failures
from escrowmq.broker.access.known_users import KnownUser, KnownUsers, is_less, is_local
from escrowmq.model.credentials import LOCAL_ADMIN
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.model.users import Action
from escrowmq.protocol.native.codes import is_native
from escrowmq.protocol.signing import grpc, native, remoting
from escrowmq.protocol.signing.keys import is_same, refuse_unsigned, refuse_wrong
from escrowmq.protocol.signing.replays import Replays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from escrowmq.access.needs import Needs
    from escrowmq.broker.access.known_users import Denied
    from escrowmq.broker.access.secret_box import SecretKeeper
    from escrowmq.broker.state.client_links import ClientLink
    from escrowmq.model.secret import Secret
    from escrowmq.transaction.memory.catalog import Catalog
    from escrowmq.transaction.records import NamedOrigin

log = event_log(__name__)

#: Errors that mean that the gate does not know who the caller is; all others are about rights.
UNKNOWN_CALLER = frozenset(
    (
        "not_authenticated",
        "credentials_wrong",
        "credentials_malformed",
        "replayed",
        "request_too_old",
        "user_disabled",
        "other_user",
        "tls_required",
    )
)
UNKNOWN_MAX = 1_024
"""Connections without a user; with more, the oldest one is cut."""
LINES_MAX = 10
"""Log lines about refusals in one second; further ones are only counted."""
HTTP_SCHEME = "EscrowMQ"
_NO_KEYS = (b"no user has this key",)


class Link(Protocol):
    """A connection, as the gate sees it."""

    #: The user that it belongs to; None before its first request.
    caller: KnownUser | None

    @property
    def peer_host(self) -> str:
        """The client's host."""
        ...

    @property
    def is_tls(self) -> bool:
        """Whether others can neither read nor change what is sent."""
        ...

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """Names in the peer's verified certificate; none without one."""
        ...

    def cut(self, event: str, **facts: object) -> None:
        """Abort the connection at once."""
        ...


class AccessGate:
    """Decides about requests. Use it from one event loop only."""

    def __init__(
        self,
        catalog: Catalog,
        keeper: SecretKeeper,
        now_ms: Callable[[], int],
        admin_token: Secret | None = None,
        *,
        requires_tls: bool = True,
    ) -> None:
        self.users = KnownUsers(catalog, keeper, admin_token)
        self._requires_tls = requires_tls
        #: The machine's wall clock, to which clients compare theirs.
        self._now_ms = now_ms
        self.replays = Replays()
        self.failures = Failures()
        #: Refusals by the code of their error.
        self.refused: Counter[str] = Counter()
        #: Connections by the name of their user.
        self._links: dict[str, set[Link]] = {}
        #: Connections without a user, in the order in which they came.
        self._unknown: dict[Link, None] = {}
        self._line_second = -1
        self._lines = 0

    # Connections.

    def opened(self, link: Link) -> None:
        """Note a connection that has no user yet."""
        self._unknown[link] = None
        if len(self._unknown) > UNKNOWN_MAX:
            next(iter(self._unknown)).cut("not_authenticated", waiting=UNKNOWN_MAX)

    def closed(self, link: Link) -> None:
        """Forget a connection."""
        self._unknown.pop(link, None)
        if link.caller is not None:
            links = self._links.get(link.caller.name, set())
            links.discard(link)
            if not links:
                self._links.pop(link.caller.name, None)

    def sweep(self) -> None:
        """Cut the connections of users that may do less than before: their requests may wait."""
        for name, links in list(self._links.items()):
            now = self.users.named(name)
            for link in list(links):
                before = link.caller
                assert before is not None
                if now is before:
                    continue
                if is_less(before.user, None if now is None else now.user):
                    link.cut("user_changed", user=name)
                else:
                    link.caller = now

    # Who.

    def admit_remoting(
        self, link: Link, code: int, fields: Mapping[str, str], body: bytes
    ) -> KnownUser:
        """Return the user that signed a remoting or native request."""
        self._refuse_plaintext(link)
        access_key = fields.get(remoting.ACCESS_KEY, "")
        if not access_key or remoting.SIGNATURE not in fields:
            known = self._certified(link)
            if known is not None:
                return self._belonging(link, known)
            raise refuse_unsigned("give the client an access key and a secret")
        known = self._with_key(link, access_key)
        keys = _NO_KEYS if known is None else known.keys
        if is_native(code):
            nonce = native.read_nonce(fields)
            is_signed = native.is_signed(keys, code, fields, body)
            known = self._checked(known, is_signed=is_signed)
            self.replays.accept(known.name, nonce, self._now_ms())
        else:
            known = self._checked(known, is_signed=remoting.is_signed(keys, fields, body))
        return self._belonging(link, known)

    def admit_grpc(self, link: Link, authorization: str, date_time: str) -> KnownUser:
        """Return the user that signed a gRPC call."""
        self._refuse_plaintext(link)
        if not authorization:
            known = self._certified(link)
            if known is not None:
                return self._belonging(link, known)
            raise refuse_unsigned("give the client an access key and a secret")
        told = grpc.read_authorization(authorization)
        known = self._with_key(link, told.access_key)
        keys = _NO_KEYS if known is None else known.keys
        known = self._checked(known, is_signed=grpc.is_signed(keys, told, date_time))
        grpc.fresh_until_ms(date_time, self._now_ms())
        return self._belonging(link, known)

    def admit_http(self, link: Link, path: str, authorization: str) -> KnownUser:
        """Return the user that signed an HTTP request, or that gives its secret over TLS."""
        self._refuse_plaintext(link)
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "basic":
            # It sends the secret itself, so no setting lets it in without TLS.
            self._refuse_plaintext(link, always=True)
            access_key, secret = _basic(rest)
            known = self._with_key(link, access_key)
            keys = _NO_KEYS if known is None else known.keys
            found = False
            for key in keys:
                found |= is_same(key, secret)
            return self._belonging(link, self._checked(known, is_signed=found))
        if scheme != HTTP_SCHEME:
            known = self._certified(link)
            if known is not None:
                return self._belonging(link, known)
            raise refuse_unsigned("send an Authorization header")
        fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
        known = self._with_key(link, fields.get(remoting.ACCESS_KEY, ""))
        nonce = native.read_nonce(fields)
        keys = _NO_KEYS if known is None else known.keys
        is_signed = native.is_signed(keys, 0, {**fields, "path": path}, b"")
        known = self._checked(known, is_signed=is_signed)
        self.replays.accept(known.name, nonce, self._now_ms())
        return self._belonging(link, known)

    def _refuse_plaintext(self, link: Link, *, always: bool = False) -> None:
        """Refuse a connection from another machine that others may read."""
        if link.caller is not None or link.is_tls or is_local(link.peer_host):
            return
        if self._requires_tls or always:
            raise RequestRefused(
                "tls_required",
                "connect with TLS: others may read what this connection sends, and send it again",
            )

    def _with_key(self, link: Link, access_key: str) -> KnownUser | None:
        """Return the user with an access key; the local admin only for clients on this machine."""
        if access_key == LOCAL_ADMIN and not is_local(link.peer_host):
            return None
        return self.users.by_access_key(access_key)

    def _certified(self, link: Link) -> KnownUser | None:
        """Return the user of the client's certificate."""
        for subject in link.certificate_names:
            known = self.users.by_certificate(subject)
            if known is not None:
                return known
        return None

    def _checked(self, known: KnownUser | None, *, is_signed: bool) -> KnownUser:
        if known is None or not is_signed:
            raise refuse_wrong()
        return known

    def _belonging(self, link: Link, known: KnownUser) -> KnownUser:
        """Give a connection to its user; refuse a second one."""
        if not known.user.is_enabled:
            raise RequestRefused(
                "user_disabled", "`escrowmq user enable` enables the user", user=known.name
            )
        before = link.caller
        if before is known:
            return known
        if before is None:
            self._unknown.pop(link, None)
            self._links.setdefault(known.name, set()).add(link)
        elif before.name != known.name:
            raise RequestRefused(
                "other_user", "use a connection of its own for each user", user=known.name
            )
        elif is_less(before.user, known.user):
            # Requests that wait on the connection were allowed by policies that are gone.
            self.sweep()
        link.caller = known
        return known

    # What.

    def require(self, known: KnownUser, needs: Needs, host: str) -> None:
        """Refuse a request whose needs are not all met."""
        denied = known.denied(needs, host)
        if denied is not None:
            raise _refusal(known, denied)

    def may(self, name: str, needs: Needs, host: str) -> bool:
        """Whether the user of this name may do something now."""
        known = self.users.named(name)
        return known is not None and known.denied(needs, host) is None

    def may_answer(self, link: ClientLink, origin: NamedOrigin) -> bool:
        """Whether a client may see and decide half messages from this origin."""
        caller = link.caller
        known = None if caller is None else self.users.named(caller.name)
        if known is None or not known.user.is_enabled:
            return False
        if origin.user and origin.user == known.name:
            return True
        host = link.address.rpartition(":")[0].strip("[]")
        return known.denied(on_group(Action.PUB, origin.group), host) is None

    # Refusals.

    def note(self, error: EscrowError, host: str, now_s: float, **facts: object) -> None:
        """Count a refusal, and log it unless this second's lines are used up."""
        self.refused[error.code] += 1
        if int(now_s) != self._line_second:
            self._line_second, self._lines = int(now_s), 0
        self._lines += 1
        if self._lines <= LINES_MAX:
            is_denied = error.code not in UNKNOWN_CALLER
            event = "access_denied" if is_denied else "login_failed"
            log.warning(event, extra={"why": error.code, "host": host, **error.fields, **facts})


def _refusal(known: KnownUser, denied: Denied) -> RequestRefused:
    need, decision = denied.need, denied.decision
    policy = ""
    if decision.grant is not None:
        resource, actions, _, effect = policy_texts(decision.grant.policy)
        policy = f"{effect} {actions} on {resource}"
    advice = "an admin grants it with `escrowmq acl grant`"
    if decision.why is Why.DENIED:
        advice = "a policy denies it: `escrowmq acl list` shows the user's policies"
    return RequestRefused(
        "not_allowed",
        advice,
        user=known.name,
        action=need.action.value,
        resource=f"{need.kind}:{need.name}" if need.name else need.kind.value,
        policy=policy,
    )


def _basic(text: str) -> tuple[str, bytes]:
    try:
        decoded = b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise RequestRefused("credentials_malformed", "the header is not Base64") from None
    access_key, _, secret = decoded.partition(b":")
    return access_key.decode("latin-1"), secret
