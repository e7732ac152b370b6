"""TLS for a port without a configured certificate: a self-signed one, its key in memory only."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

LIFETIME = timedelta(days=365)


def self_signed(names: Iterable[str]) -> ssl.SSLContext:
    """A context with a new key and a certificate for these host names and addresses.

    It keeps others from listening, not from playing the server: who wants that gives a certificate, or tells those who
    ask which one this is (``self_signed_with_pem``).
    """
    return self_signed_with_pem(names)[0]


def self_signed_with_pem(names: Iterable[str], lifetime: timedelta = LIFETIME) -> tuple[ssl.SSLContext, str]:
    """The same, and the certificate as PEM, by which the server is known."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "devalloc-controller")])
    now = datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    usage = x509.KeyUsage(True, False, False, False, False, True, False, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in sorted(set(names))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(usage, True)  # for signatures, and for its own
        .add_extension(identifier, False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False)
        .sign(key, hashes.SHA256())
    )
    certificate = builder.public_bytes(serialization.Encoding.PEM)
    pem = certificate + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)  # the library reads files only
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context, certificate.decode()


def _general_name(name: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
