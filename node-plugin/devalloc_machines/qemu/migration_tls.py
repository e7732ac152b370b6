"""Certificates of one migration: each side makes its own authority and its own key, and publishes the authority's
certificate alone. So no secret passes through the store, and no other node can take part.

The keys lie in the machine's folder until QEMU has read them. That folder is its QEMU's, which may have put anything
there: nothing is opened here by a path through it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from devalloc_machines.qemu.launch import TLS_FOLDER
from devalloc_node.errors import Denied, Failed

Endpoint = Literal["client", "server"]
"""QEMU's word for a side: the source connects, and is the client."""
SERVER_NAME = "devalloc"
"""In the server's certificate, and what the client expects there: the authority is the proof, not the name."""
AUTHORITIES = "ca-cert.pem"
GROUP_FILE = "dh-params.pem"
GROUP = """\
-----BEGIN DH PARAMETERS-----
MIIBCAKCAQEA//////////+t+FRYortKmq/cViAnPTzx2LnFg84tNpWp4TZBFGQz
+8yTnc4kmz75fS/jY2MMddj2gbICrsRhetPfHtXV/WVhJDP1H18GbtCFY2VVPe0a
87VXE15/V8k1mE8McODmi3fipona8+/och3xWKE2rec1MKzKT0g6eXq8CrGCsyT7
YdEIqUuyyOP7uWrat2DX9GgdT0Kj3jlN9K5W7edjcrsZCwenyO4KbXCeAvzhzffi
7MA0BM0oNC9hkXL+nOmFg/+OTxIy7vKBg8P+OxtMb61zO7X8vC7CIAXFjvGDfRaD
ssbzSibBsu/6iGtCOGEoXJf//////////wIBAg==
-----END DH PARAMETERS-----
"""
"""The group ffdhe2048 of RFC 7919. Without it the server of an older QEMU searches for one of its own, which takes
seconds, in the thread that serves its monitor. Our keys are of elliptic curves and use none."""
_BEFORE, _AFTER = timedelta(days=1), timedelta(days=2)
"""How far the clocks of nodes may differ, and how long a migration may wait for its begin."""
_MAX_CERTIFICATE = 16 << 10
"""Bytes; one of ours has 0.6 KiB."""


@dataclass(frozen=True, slots=True)
class Identity:
    """PEM."""

    authority: str
    certificate: str
    key: str


def make_identity(endpoint: Endpoint) -> Identity:
    """A key, its certificate, and that of an authority whose own key exists nowhere any more."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def usage(*, signs: bool) -> x509.KeyUsage:
        return x509.KeyUsage(not signs, False, False, False, False, signs, False, False, False)

    now, authority_key, key = datetime.now(UTC), *(ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = named(f"devalloc migration {x509.random_serial_number():x}")
    begun = x509.CertificateBuilder().issuer_name(issuer).not_valid_before(now - _BEFORE).not_valid_after(now + _AFTER)
    authority = (
        begun.subject_name(issuer)
        .public_key(authority_key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(usage(signs=True), True)
        .sign(authority_key, hashes.SHA256())
    )
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if endpoint == "client" else ExtendedKeyUsageOID.SERVER_AUTH
    certificate = (
        begun.subject_name(named(SERVER_NAME))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(usage(signs=False), True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Identity(authority.public_bytes(pem).decode(), certificate.public_bytes(pem).decode(), secret.decode())


def check_authority(certificate: str) -> str:
    """What the other side published, as PEM and nothing else. Raises Denied (``CertificateInvalid``)."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    try:
        if len(certificate) > _MAX_CERTIFICATE:
            raise ValueError(f"it has {len(certificate)} bytes; the maximum is {_MAX_CERTIFICATE}")
        return x509.load_pem_x509_certificate(certificate.encode()).public_bytes(Encoding.PEM).decode()
    except ValueError as error:
        raise Denied("CertificateInvalid", f"the certificate of the other node is unreadable: {error}") from None


def files_of(identity: Identity, endpoint: Endpoint) -> dict[str, str]:
    """The files of one side, without the other's authority."""
    group = {GROUP_FILE: GROUP} if endpoint == "server" else {}
    return group | {
        AUTHORITIES: identity.authority,
        f"{endpoint}-cert.pem": identity.certificate,
        f"{endpoint}-key.pem": identity.key,
    }


def write_files(folder: Path, user: int | None, files: Mapping[str, str]) -> None:
    """Replace what is in the TLS folder of a machine's ``folder``, for QEMU's user alone. Raises Failed."""
    with _failing(folder, "write"), _opened(folder) as parent:
        _remove(parent)
        os.mkdir(TLS_FOLDER, 0o700, dir_fd=parent)
        with _opened(TLS_FOLDER, parent) as inside:
            for name, text in files.items():
                _write(inside, name, text, user)
            if user is not None:
                os.fchown(inside, user, user)


def replace_authorities(folder: Path, user: int | None, certificates: str) -> bool:
    """Write whom one side believes; False if its own key is not there any more. Raises Failed."""
    with (
        _failing(folder, "write"),
        suppress(FileNotFoundError),
        _opened(folder) as parent,
        _opened(TLS_FOLDER, parent) as inside,
    ):
        with suppress(FileNotFoundError):
            os.unlink(AUTHORITIES, dir_fd=inside)
        _write(inside, AUTHORITIES, certificates, user)
        return any(name.endswith("-key.pem") for name in os.listdir(inside))
    return False


def remove_files(folder: Path) -> None:
    """Remove the TLS folder of a machine, if there is one. Raises Failed."""
    with _failing(folder, "remove"), suppress(FileNotFoundError), _opened(folder) as parent:
        _remove(parent)


@contextmanager
def _failing(folder: Path, work: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed("HostUnwritable", f"cannot {work} the keys of a migration below {folder}: {error}") from None


@contextmanager
def _opened(folder: Path | str, parent: int | None = None) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _write(folder: int, name: str, text: str, user: int | None) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        if user is not None:
            os.fchown(fd, user, user)
        content = text.encode()
        while content:
            content = content[os.write(fd, content) :]
    finally:
        os.close(fd)


def _remove(parent: int) -> None:
    try:
        os.unlink(TLS_FOLDER, dir_fd=parent)  # if it is a link or a file
    except FileNotFoundError:
        return
    except IsADirectoryError:
        shutil.rmtree(TLS_FOLDER, dir_fd=parent)
