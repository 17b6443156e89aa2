"""The TLS context of a broker, from the operator's files or from a certificate of its own.

Some of RocketMQ's clients use TLS unless told otherwise, and accept any certificate. So a broker
without one makes a self-signed certificate at its first start, and keeps it in its data directory.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from escrowmq.broker.config import TlsConfig
from escrowmq.broker.state.row_places import KEY_BYTES, KEY_FILE
from escrowmq.model.errors import RequestRefused

FOLDER = "tls"
CERT = "cert.pem"
KEY = "key.pem"
VALID_DAYS = 3_650
_SECRET = 0o600


def tls_context(config: TlsConfig, data: Path, host: str, now_ms: int) -> ssl.SSLContext | None:
    """Return the context for connections with TLS; None if TLS is off."""
    if config.mode == "off":
        return None
    cert, key = Path(config.cert_file), Path(config.key_file)
    if not config.cert_file:
        cert, key = self_signed(data / FOLDER, host, now_ms)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
        if config.ca_file:
            context.load_verify_locations(config.ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise RequestRefused(
            "tls_unusable",
            "name PEM files of a certificate, its key, and the CA of clients",
            cert_file=str(cert),
            key_file=str(key),
            ca_file=config.ca_file,
            reason=str(error),
        ) from None
    return context


def self_signed(folder: Path, host: str, now_ms: int) -> tuple[Path, Path]:
    """Return the files of a self-signed certificate and its key; make them if there are none."""
    cert, key = folder / CERT, folder / KEY
    if not (cert.exists() and key.exists()):
        made_cert, made_key = _made(host, now_ms)
        folder.mkdir(parents=True, exist_ok=True)
        # The certificate is last: with it, both are there.
        keep(key, made_key)
        keep(cert, made_cert)
    return cert, key


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


def _made(host: str, now_ms: int) -> tuple[bytes, bytes]:
    """Return a new self-signed certificate and its key, as PEM."""
    # Imported here, because it takes a moment and is needed once in a broker's life.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "EscrowMQ")])
    since = datetime.fromtimestamp(now_ms / 1_000, UTC) - timedelta(days=1)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    if ip_address(host) != names[1].value:
        names.append(x509.IPAddress(ip_address(host)))
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(since + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return cert.public_bytes(pem), secret
