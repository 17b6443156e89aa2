"""A certificate authority of our own, for brokers and clients under test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOST = "127.0.0.1"
VALID = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """PEM files of the authority, and of a server's and a client's pair that it signed."""

    ca_file: Path
    cert_file: Path
    key_file: Path
    client_file: Path
    client_key_file: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a certificate for 127.0.0.1."""
    ca_key, key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca_name, name, client_name = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
        for text in ("Interop CA", "Interop broker", "Interop client")
    )
    ca = (
        _builder(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))])
    cert = (
        _builder(name, ca_name, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    client = (
        _builder(client_name, ca_name, client_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return Certificates(
        ca_file=_written(folder / "ca.pem", ca.public_bytes(pem)),
        cert_file=_written(folder / "cert.pem", cert.public_bytes(pem)),
        key_file=_written(folder / "key.pem", _pem_of(key)),
        client_file=_written(folder / "client.pem", client.public_bytes(pem)),
        client_key_file=_written(folder / "client-key.pem", _pem_of(client_key)),
    )


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
    )


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def tls_settings(certificates: Certificates) -> dict[str, str]:
    """Return the settings of a broker that takes TLS only, with these certificates."""
    return {
        "tls.mode": "required",
        "tls.cert_file": str(certificates.cert_file),
        "tls.key_file": str(certificates.key_file),
    }
