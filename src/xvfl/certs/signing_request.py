"""Signing requests (PKCS #10): an authority signs a certificate whose key it never sees.

NAME.key   the private key; it stays where it was created
NAME.csr   for the authority, which answers with NAME.crt
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from xvfl.certs import pem_files
from xvfl.certs.names import alternative_names, check_name
from xvfl.certs.pem_files import OWNER_ONLY, WORLD_READABLE
from xvfl.errors import CertificateError
from xvfl.system.printable import one_line

MAX_BYTES = 2**16
"""Largest request that is read."""
MIN_RSA_BITS = 2048
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


@dataclass(frozen=True)
class SigningRequest:
    """A request whose sender has the private key."""

    name: str
    hosts: tuple[str, ...]
    """Hosts of a server that it asks for."""
    public: PublicKey

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key, in hexadecimal."""
        info = PublicFormat.SubjectPublicKeyInfo
        return sha256(self.public.public_bytes(Encoding.DER, info)).hexdigest()


def create_request(folder: Path, name: str, hosts: Sequence[str] = ()) -> SigningRequest:
    """Create NAME.key and NAME.csr in a folder; neither may exist.

    Parameters
    ----------
    folder : Path
        It is created if it does not exist.
    name : str
        The party, or the coordinator.
    hosts : sequence of str
        Host names and addresses of a server; a party needs none.

    Returns
    -------
    SigningRequest

    """
    check_name(name)
    names = alternative_names(name, hosts)
    key_file, request_file = folder / f"{name}.key", folder / f"{name}.csr"
    pem_files.check_absent(key_file, request_file)
    key = ec.generate_private_key(ec.SECP256R1())
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CertificateError(f"{folder}: cannot be created ({error.strerror})") from error
    pem_files.write_new(key_file, pem_files.key_to_pem(key), OWNER_ONLY)
    pem_files.write_new(request_file, request.public_bytes(Encoding.PEM), WORLD_READABLE)
    return SigningRequest(name, tuple(hosts), key.public_key())


def read_request(path: Path) -> SigningRequest:
    """Read a request from others; reject it if its sender does not have the private key."""
    data = pem_files.read_limited(path, MAX_BYTES, "a request")
    try:
        request = x509.load_pem_x509_csr(data)
        public, proved = request.public_key(), request.is_signature_valid
        common = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        hosts = _hosts(request)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise CertificateError(
            f"{path}: expected a signing request in PEM format ({one_line(str(error), 200)})"
        ) from error
    if not proved:
        raise CertificateError(f"{path}: its signature is not of the key that it names")
    if not (
        (isinstance(public, ec.EllipticCurvePublicKey) and public.key_size >= 256)
        or (isinstance(public, rsa.RSAPublicKey) and public.key_size >= MIN_RSA_BITS)
    ):
        raise CertificateError(
            f"{path}: expected an elliptic-curve key of 256 bits or more, or an RSA key of "
            f"{MIN_RSA_BITS}"
        )
    if len(common) != 1:
        raise CertificateError(f"{path}: expected one common name, got {len(common)}")
    name = str(common[0].value)
    check_name(name)
    return SigningRequest(name, tuple(each for each in hosts if each != name), public)


def _hosts(request: x509.CertificateSigningRequest) -> list[str]:
    try:
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    found = [*names.get_values_for_type(x509.DNSName), *addresses]
    return [one_line(each, 253) for each in found]
