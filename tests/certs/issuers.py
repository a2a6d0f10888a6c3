"""Authorities of organisations, with intermediates, as their own tools would make them."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from xvfl.certs.pem_files import key_to_pem


@dataclass
class Issuer:
    """A root, or an intermediate authority below another one."""

    name: str
    above: "Issuer | None" = None
    path_length: int | None = None
    is_authority: bool = True
    days: float = 365
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def __post_init__(self) -> None:
        above = self.above or self
        self.certificate = above.sign(
            self.name, self.key.public_key(), self.days, self.is_authority, self.path_length
        )

    def sign(
        self,
        name: str,
        public: ec.EllipticCurvePublicKey,
        days: float,
        is_authority: bool = False,
        path_length: int | None = None,
        hosts: tuple[str, ...] = (),
    ) -> x509.Certificate:
        """Sign a certificate that ends in this many days."""
        now, ends = datetime.now(UTC), datetime.now(UTC) + timedelta(days=days)
        usage = dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(self.name))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, ends) - timedelta(days=1))
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(is_authority, path_length), True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=not is_authority,
                    key_cert_sign=is_authority,
                    crl_sign=is_authority,
                    **usage,
                ),
                True,
            )
        )
        if not is_authority:
            names = [x509.DNSName(each) for each in (name, *hosts)]
            purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
            purposes += [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), False)
        return builder.sign(self.key, hashes.SHA256())

    def write(
        self, folder: Path, name: str, hosts: tuple[str, ...] = (), days: float = 90
    ) -> x509.Certificate:
        """Write NAME.key and NAME.crt, with the certificates of intermediate authorities."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self.sign(name, key.public_key(), days, hosts=hosts)
        chain, issuer = [signed], self
        while issuer.above is not None:
            chain.append(issuer.certificate)
            issuer = issuer.above
        (folder / f"{name}.key").write_bytes(key_to_pem(key))
        (folder / f"{name}.crt").write_bytes(bundle(chain))
        return signed

    def revocation_list(self, *revoked: x509.Certificate) -> bytes:
        """Sign a list of revoked certificates."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(_name(self.name))
        builder = builder.last_update(now).next_update(now + timedelta(days=30))
        for each in revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(each.serial_number)
                .revocation_date(now)
                .build()
            )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def bundle(certificates: list[x509.Certificate]) -> bytes:
    """Encode certificates as one PEM file."""
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
