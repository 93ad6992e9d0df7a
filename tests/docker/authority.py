"""A certificate authority for one test, and the certificates of its servers."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
    )


def write_certificates(directory: Path, *servers: str) -> str:
    """Write SERVER.crt and SERVER.key for each server; return the certificate of who signed them."""
    authority = ec.generate_private_key(ec.SECP256R1())
    root = (
        _builder("test authority", "test authority", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    for server in servers:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(server, "test authority", key)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(server)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
            )
            .sign(authority, hashes.SHA256())
        )
        (directory / f"{server}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (directory / f"{server}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return root.public_bytes(serialization.Encoding.PEM).decode()
