"""A CA with certificates of a broker and a client, in files."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from escrowmq.broker.config import TlsConfig, TlsMode
from escrowmq.broker.net import certificates
from escrowmq.broker.net.certificates import CertificateUse, MadePair, Subject

HOST = "127.0.0.1"
CLIENT = "orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """PEM files of a certificate and its key."""

    cert: Path
    key: Path

    def write(self, made: MadePair) -> None:
        """Replace the contents."""
        self.key.write_bytes(made.key)
        self.cert.write_bytes(made.cert)


class Pki:
    """A CA below a folder, a broker's pair, and a client's pair that it signed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.authority = certificates.make_ca("Test CA", self.now_ms(), 90)
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_bytes(self.authority.cert)
        self.server = self._files("server", self.made(CertificateUse.SERVER, "broker", HOST))
        self.client = self._files(
            "client", self.made(CertificateUse.CLIENT, CLIENT, "orders.example.org")
        )

    @staticmethod
    def now_ms() -> int:
        """The time by which TLS judges certificates."""
        return time.time_ns() // 1_000_000

    def made(self, use: CertificateUse, name: str, *hosts: str, days: int = 90) -> MadePair:
        """Return a new pair."""
        return certificates.make_leaf(
            self.authority, use, Subject(name, hosts), self.now_ms(), days
        )

    def _files(self, name: str, made: MadePair) -> Files:
        files = Files(cert=self.folder / f"{name}.pem", key=self.folder / f"{name}-key.pem")
        files.write(made)
        return files

    def config(self, mode: TlsMode = "optional", *, asks_clients: bool = False) -> TlsConfig:
        """Return the broker's settings."""
        return TlsConfig(mode=mode, **self.fields(asks_clients=asks_clients))

    def fields(self, *, asks_clients: bool = False) -> dict[str, str]:
        """Return the broker's settings of files."""
        return {
            "cert_file": str(self.server.cert),
            "key_file": str(self.server.key),
            "ca_file": str(self.ca_file) if asks_clients else "",
        }

    def trusting(self, *, shows: Files | None = None) -> ssl.SSLContext:
        """Return a client's context that trusts this CA only, and may show a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca_file)
        if shows is not None:
            context.load_cert_chain(shows.cert, shows.key)
        return context
