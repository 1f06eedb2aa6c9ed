"""Certificates for tests, each signed by itself."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path

    def trust(self) -> ssl.SSLContext:
        """What a client needs to trust the certificate that is in the file now."""
        return ssl.create_default_context(cafile=self.certificate)


def make_pair(directory: Path, name: str = "server", *, password: bytes | None = None) -> Pair:
    """A certificate for localhost and 127.0.0.1. Files of that name are replaced, the certificate first."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    encryption = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    _replace(pair.certificate, certificate.public_bytes(pem))
    _replace(pair.key, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption))
    return pair


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    os.replace(fresh, path)
