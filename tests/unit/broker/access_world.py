"""A broker with access control, its users, and peers that sign their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from escrowmq.access.parsing import parse_policy
from escrowmq.broker.access.secret_box import ENV_KEY, SecretKeeper
from escrowmq.broker.config import AccessConfig
from escrowmq.broker.server import Server
from escrowmq.client.network.request_signer import RequestSigner
from escrowmq.model.clock import SystemClock
from escrowmq.model.credentials import Credentials
from escrowmq.model.secret import Secret
from escrowmq.model.users import Policy, Role, User, UserKind
from escrowmq.protocol.native.frames import NativeReply, encode_call, read_answer
from escrowmq.protocol.native.headers import NativeHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.remoting.frames import RemotingFrame, encode_request
from escrowmq.protocol.remoting.headers import Header
from escrowmq.testing.calls import accepted
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.user_commands import NEW, PutUser, RemoveUser
from tests.unit.broker.wire import Peer, serving

ON = AccessConfig(mode="on")
KEY = "ab" * 32
SECRET = "correct-horse-battery"


def keeper() -> SecretKeeper:
    return SecretKeeper(environ={ENV_KEY: KEY})


def clock_now() -> ManualClock:
    """A clock that stands still at the machine's time, so that signatures are fresh."""
    return ManualClock(SystemClock().now_ms())


@asynccontextmanager
async def guarded(data: Path, **changes: Any) -> AsyncIterator[Server]:  # noqa: ANN401 - as ``serving``
    """Run a broker with access control and no users."""
    clock = changes.pop("clock", None) or clock_now()
    async with serving(data, clock, access=ON, secrets=keeper(), **changes) as server:
        yield server


async def put_user(
    server: Server,
    name: str,
    *policies: Policy,
    roles: Iterable[Role] = (),
    kind: UserKind = UserKind.NORMAL,
    is_enabled: bool = True,
    secrets: Sequence[str] = (SECRET,),
    certificate_names: Sequence[str] = (),
) -> None:
    """Create a user, or change it as a whole."""
    known = server.broker.catalog.users.get(name)
    box = keeper().box
    user = User(
        name=name,
        kind=kind,
        is_enabled=is_enabled,
        access_key=name,
        secrets=tuple(box.seal(Secret(one), name) for one in secrets),
        policies=policies,
        roles=tuple(roles),
        certificate_names=tuple(certificate_names),
    )
    seen = NEW if known is None else known.version
    accepted(await server.broker.writer.submit(PutUser(user=user, seen=seen, by="test")))


async def remove_user(server: Server, name: str) -> None:
    """Remove a user."""
    accepted(await server.broker.writer.submit(RemoveUser(name=name, by="test")))


def allow(grant: str, sources: str = "") -> Policy:
    """The policy of a text such as ``Pub Topic:orders``."""
    actions, resource = grant.split(" ")
    return parse_policy(resource, actions, sources)


def deny(grant: str) -> Policy:
    actions, resource = grant.split(" ")
    return parse_policy(resource, actions, "", "deny")


class Signed:
    """A connection whose requests a user signs."""

    def __init__(self, peer: Peer, signer: RequestSigner | None) -> None:
        self.peer = peer
        self.signer = signer
        self._opaque = 10_000

    @classmethod
    async def to(cls, address: str, user: str = "", secret: str = SECRET) -> Signed:
        """Connect; without a user, requests are not signed."""
        signer = RequestSigner(Credentials(user, secret)) if user else None
        return cls(await Peer.to(address), signer)

    def frame(self, code: int, header: Header | None = None, body: bytes = b"") -> bytes:
        """Return a signed frame."""
        self._opaque += 1
        return encode_request(code, self._opaque, header=header, body=body, signer=self.signer)

    async def exchange(self, frame: bytes) -> RemotingFrame:
        """Send the last frame, and return its answer."""
        opaque = self._opaque
        self.peer.write(frame)
        return await self.peer.until(lambda one: one.is_response and one.opaque == opaque)

    async def ask(
        self, code: int, header: Header | None = None, body: bytes = b""
    ) -> RemotingFrame:
        """Send a remoting request, and return its answer."""
        return await self.exchange(self.frame(code, header, body))

    def call_frame(
        self, code: NativeCode, header: NativeHeader | None = None, rows: Sequence[NativeRow] = ()
    ) -> bytes:
        """Return a signed native frame."""
        self._opaque += 1
        return encode_call(code, self._opaque, header, rows, self.signer)

    async def call(
        self, code: NativeCode, header: NativeHeader | None = None, rows: Sequence[NativeRow] = ()
    ) -> NativeReply:
        """Send a native request, and return its answer; raise if it is refused."""
        return read_answer(code, await self.exchange(self.call_frame(code, header, rows)))

    async def tell_and_sync(
        self, code: int, header: Header | None = None, body: bytes = b""
    ) -> None:
        """Send a one-way request, and wait until the broker has handled it."""
        self._opaque += 1
        self.peer.write(
            encode_request(code, 0, header=header, body=body, is_one_way=True, signer=self.signer)
        )
        await self.call(NativeCode.STATUS)


async def in_time(coming: Any) -> Any:  # noqa: ANN401 - any awaitable
    """Wait for something, but not for ever."""
    async with asyncio.timeout(20):
        return await coming
