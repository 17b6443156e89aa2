"""Certificates that EscrowMQ makes: a broker's own, and those of a private CA for development.

Keys are on the curve P-256, which costs a broker the least per handshake. The module does no file
I/O.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

#: How far back a certificate is valid, for machines whose clock is behind.
SINCE = timedelta(days=1)
OWN_NAME = "EscrowMQ"
OWN_VALID_DAYS = 3_650


class CertificateUse(StrEnum):
    """The side of a connection that a certificate is for."""

    SERVER = "server"
    CLIENT = "client"


class Subject(NamedTuple):
    """Whom a certificate is for: a name, and the hosts at which a server is reached."""

    name: str
    hosts: Sequence[str] = ()


class MadePair(NamedTuple):
    """A certificate and its key, as PEM."""

    cert: bytes
    key: bytes


def self_signed(hosts: Iterable[str], now_ms: int) -> MadePair:
    """Return a new server certificate that no CA has signed."""
    key = _new_key()
    name = _name(OWN_NAME)
    builder = _builder(name, name, key, now_ms, OWN_VALID_DAYS)
    builder = builder.add_extension(_alternatives(hosts), critical=False)
    return _signed(builder, key, key)


def make_ca(name: str, now_ms: int, valid_days: int) -> MadePair:
    """Return a new CA, which signs certificates of servers and clients but no other CA."""
    from cryptography import x509

    key = _new_key()
    builder = _builder(_name(name), _name(name), key, now_ms, valid_days)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    ).add_extension(_usage(is_ca=True), critical=True)
    return _signed(builder, key, key)


def make_leaf(
    ca: MadePair, use: CertificateUse, subject: Subject, now_ms: int, valid_days: int
) -> MadePair:
    """Return a new certificate of a server or a client, which the CA has signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    ca_cert = x509.load_pem_x509_certificate(ca.cert)
    ca_key = load_pem_private_key(ca.key, password=None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = _new_key()
    oids = x509.oid.ExtendedKeyUsageOID
    purpose = oids.SERVER_AUTH if use is CertificateUse.SERVER else oids.CLIENT_AUTH
    builder = _builder(_name(subject.name), ca_cert.subject, key, now_ms, valid_days)
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    if subject.hosts:
        builder = builder.add_extension(_alternatives(subject.hosts), critical=False)
    return _signed(builder, key, ca_key)


def expires_at_ms(cert: bytes) -> int:
    """Return when the first certificate of a PEM file expires."""
    from cryptography import x509

    first = x509.load_pem_x509_certificate(cert)
    return int(first.not_valid_after_utc.timestamp() * 1_000)


def _new_key() -> ec.EllipticCurvePrivateKey:
    # Imported here, as everywhere in this module, because it takes a moment and is seldom needed.
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _alternatives(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    from cryptography import x509

    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now_ms: int,
    valid_days: int,
) -> x509.CertificateBuilder:
    from cryptography import x509

    since = datetime.fromtimestamp(now_ms / 1_000, UTC) - SINCE
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(since + SINCE + timedelta(days=valid_days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
) -> MadePair:
    from cryptography.hazmat.primitives import hashes, serialization

    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return MadePair(builder.sign(signer, hashes.SHA256()).public_bytes(pem), secret)
