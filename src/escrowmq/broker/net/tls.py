"""TLS of a broker: the contexts of all doors, made from files and made again when these change.

Some of RocketMQ's clients use TLS unless told otherwise, and accept any certificate. So a broker
without one makes a self-signed certificate at its first start, and keeps it in its data directory.

A new pair of files replaces the contexts for new connections; open connections keep theirs. If the
new files cannot be used, the last good pair stays, and status and alerts say so.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from escrowmq.broker.net import certificates
from escrowmq.broker.state.row_places import KEY_BYTES, KEY_FILE
from escrowmq.model.errors import RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX

if TYPE_CHECKING:
    from escrowmq.broker.config import TlsConfig

log = event_log(__name__)

FOLDER = "tls"
CERT = "cert.pem"
KEY = "key.pem"
LOOPBACK = ("localhost", "127.0.0.1")
#: Names of a client's certificate that are read, and the characters of each.
NAMES_MAX = 64
NAME_CHARS_MAX = 256
#: Protocols as TLS names them (ALPN). Remoting has no name.
REMOTING, HTTP, GRPC = "", "http/1.1", "h2"
_SECRET = 0o600
#: Kinds of alternative names as ``ssl`` calls them, and as we do.
_KINDS = {"DNS": "DNS", "URI": "URI", "IP Address": "IP", "email": "EMAIL"}


class _Loaded(NamedTuple):
    contexts: dict[str, ssl.SSLContext]
    expires_at_ms: int


Stamp = tuple[tuple[int, int, int], ...]
"""Size, inode and time of change of each file."""


@dataclass(eq=False)
class ServerTls:
    """Holds the TLS contexts of a broker. ``load`` before use; use it from one event loop only."""

    config: TlsConfig
    #: The broker's data directory.
    _data: Path

    def __post_init__(self) -> None:
        self._loaded: _Loaded | None = None
        self._stamp: Stamp = ()
        #: Files that changed since they were loaded, as they were at the last look.
        self._changed: Stamp | None = None
        self._is_loading = False
        #: How often new files were loaded, and why the last ones could not be; empty if they could.
        self.reloads = 0
        self.error = ""

    @property
    def mode(self) -> str:
        """``off``, ``optional`` or ``required``."""
        return self.config.mode

    @property
    def is_required(self) -> bool:
        """Whether plaintext is refused."""
        return self.config.mode == "required"

    @property
    def expires_at_ms(self) -> int:
        """When the certificate expires; 0 without one."""
        return 0 if self._loaded is None else self._loaded.expires_at_ms

    def facts(self) -> dict[str, Any]:
        """Return what the status says."""
        return {
            "tls": self.mode,
            "tls_expires_at_ms": self.expires_at_ms,
            "tls_reloads": self.reloads,
            "tls_error": self.error[:SHOWN_CHARS_MAX],
        }

    def context(self, protocol: str) -> ssl.SSLContext | None:
        """Return the context for new connections of a protocol; None if TLS is off."""
        return None if self._loaded is None else self._loaded.contexts[protocol]

    def load(self, host: str, now_ms: int) -> None:
        """Load the files, or make them for this address; raise if they cannot be used."""
        if self.config.mode == "off":
            return
        if not self.config.cert_file:
            self_signed_files(self._data / FOLDER, host, now_ms)
        self._stamp = self._look()
        self._loaded = _load(self.config, *self._files())

    async def look(self) -> None:
        """Load files that have changed, once they stay the same from one look to the next."""
        if self._loaded is None or self._is_loading:
            return
        stamp = await asyncio.to_thread(self._look)
        if stamp == self._stamp:
            self._changed = None
        elif stamp != self._changed:
            # A certificate and its key are two files, so the other one may change yet.
            self._changed = stamp
        else:
            await self.reload()

    async def reload(self) -> None:
        """Load the files again; the last good ones stay if that fails."""
        if self._loaded is None or self._is_loading:
            return
        self._is_loading = True
        cert, key = self._files()
        try:
            self._stamp, self._changed = await asyncio.to_thread(self._look), None
            self._loaded = await asyncio.to_thread(_load, self.config, cert, key)
        except RequestRefused as error:
            self.error = str(error)
            log.warning("tls_not_reloaded", extra={"why": self.error})
        else:
            self.error = ""
            self.reloads += 1
            log.info("tls_reloaded", extra={"cert_file": str(cert)})
        finally:
            self._is_loading = False

    def _files(self) -> tuple[Path, Path]:
        if self.config.cert_file:
            return Path(self.config.cert_file), Path(self.config.key_file)
        return self._data / FOLDER / CERT, self._data / FOLDER / KEY

    def _look(self) -> Stamp:
        """Return what identifies the files' contents; a missing file counts as empty."""
        stamps = []
        for path in (*self._files(), *map(Path, filter(None, (self.config.ca_file,)))):
            try:
                found = path.stat()
                stamps.append((found.st_size, found.st_ino, found.st_mtime_ns))
            except OSError:
                stamps.append((0, 0, 0))
        return tuple(stamps)


def _load(config: TlsConfig, cert: Path, key: Path) -> _Loaded:
    try:
        contexts = {alpn: _context(config, cert, key, alpn) for alpn in (REMOTING, HTTP, GRPC)}
        return _Loaded(contexts, certificates.expires_at_ms(cert.read_bytes()))
    except (OSError, ValueError) as error:
        # Errors of ssl are OSErrors, and some files that are no PEM are ValueErrors.
        raise RequestRefused(
            "tls_unusable",
            "name PEM files of a certificate, its key without a password, and the CA of clients",
            cert_file=str(cert),
            key_file=str(key),
            ca_file=config.ca_file,
            reason=str(error),
        ) from None


def _context(config: TlsConfig, cert: Path, key: Path, alpn: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A renegotiation would let a client make the broker work without a new connection.
    context.options |= ssl.OP_NO_RENEGOTIATION
    # Without a password, OpenSSL would ask for one on the terminal.
    context.load_cert_chain(cert, key, password="")
    if config.ca_file:
        context.load_verify_locations(config.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


def has_tls(transport: asyncio.BaseTransport | None) -> bool:
    """Return whether a connection uses TLS."""
    return transport is not None and transport.get_extra_info("ssl_object") is not None


def certificate_names(transport: asyncio.BaseTransport | None) -> tuple[str, ...]:
    """Return the names in the peer's verified certificate; none if it showed none.

    The kind is part of a name: ``CN:orders``, ``DNS:app.example.org``, ``URI:spiffe://…``,
    ``IP:192.0.2.7``, ``EMAIL:…``.
    """
    shown: dict[str, Any] | None = None
    if transport is not None:
        shown = transport.get_extra_info("peercert")
    if not shown:
        return ()
    subject = (pair for one in shown.get("subject", ()) for pair in one)
    names = [f"CN:{value}" for kind, value in subject if kind == "commonName"]
    names += [
        f"{_KINDS[kind]}:{value}"
        for kind, value in shown.get("subjectAltName", ())
        if kind in _KINDS
    ]
    return tuple(name for name in names[:NAMES_MAX] if len(name) <= NAME_CHARS_MAX)


def self_signed_files(folder: Path, host: str, now_ms: int) -> None:
    """Make a self-signed certificate and its key in this folder if it holds none."""
    cert, key = folder / CERT, folder / KEY
    if cert.exists() and key.exists():
        return
    made = certificates.self_signed((*LOOPBACK, host), now_ms)
    folder.mkdir(parents=True, exist_ok=True)
    # The certificate is last: with it, both are there.
    keep(key, made.key)
    keep(cert, made.cert)


def id_key(data: Path) -> bytes:
    """Return the key of the ids that clients send back; make it at the first start."""
    return kept_secret(data / KEY_FILE, KEY_BYTES)


def kept_secret(path: Path, size: int) -> bytes:
    """Return the random bytes that a file holds; make it if there is none."""
    if not path.exists():
        keep(path, os.urandom(size))
    secret = path.read_bytes()
    if len(secret) != size:
        raise RequestRefused(
            "secret_damaged",
            "delete the file; transaction ids that were given before are then invalid",
            path=str(path),
            bytes=len(secret),
        )
    return secret


def keep(path: Path, data: bytes) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
