"""An enrolment kit: one file with what a party needs of the others, and no secret.

NAME.kit   JSON: the authority, its revocation list, the coordinator, the key that verifies releases

Its fingerprint is compared with the sender in another way; then nobody has exchanged its contents.
"""

import json
import re
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_public_key

from xvfl.certs import pem_files
from xvfl.certs.names import check_name
from xvfl.certs.peers import PeerVerifier
from xvfl.certs.pem_files import OWNER_ONLY, WORLD_READABLE
from xvfl.certs.release_key import PUBLIC_KEY
from xvfl.errors import CertificateError
from xvfl.system.printable import one_line

KIND = "xvfl enrolment kit 1"
MAX_BYTES = 2**20
"""Largest kit that is read."""
MAX_ADDRESS = 300
ADDRESS = re.compile(r"[A-Za-z0-9_.:\[\]-]+:[0-9]{1,5}")
SECRET = "PRIVATE KEY"
"""Marks a private key in PEM."""
CONFIG = """\
# Configuration of the party {name}; see the page Deploy of the documentation.
coordinator = "{address}"
table = "TABLE.parquet"           # your table: .csv, .csv.gz, .parquet, .xlsx
id_column = "ID"                  # its column of ids
state_dir = "{name}-state"
status_address = "127.0.0.1:8480"
revocation_list = "ca.crl"
{release_key}
[tls]
ca_certificate = "ca.crt"
certificate = "{name}.crt"        # from the authority, which signs {name}.csr
private_key = "{name}.key"

[matching]
max_ids = 10_000_000              # largest number of ids of the coordinator, as agreed

[upload]
purpose = ""                      # what the upload may be used for
expires = ""                      # last day of use, YYYY-MM-DD

# The rows that may be predicted, with the columns of the table; see the page "Predict with the
# federation". Delete the section if nothing is predicted together.
[prediction]
table = "NEW.parquet"             # or the table above, if its rows may be predicted
"""
"""Template of a party's configuration. It is not part of the kit: nobody else chooses its keys."""


@dataclass(frozen=True)
class Kit:
    """What the operator of a party receives."""

    party: str
    coordinator: str
    """Name of the coordinator in its certificate."""
    address: str
    """HOST:PORT of the coordinator."""
    authority: str
    """Certificates of the trusted authorities (PEM)."""
    revocation_list: str
    release_key: str = ""
    """Public key that verifies releases (PEM); empty if there is none yet."""

    def to_bytes(self) -> bytes:
        """Encode the kit."""
        return (json.dumps({"kind": KIND, **asdict(self)}, indent=1) + "\n").encode()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the kit, in hexadecimal."""
        return sha256(self.to_bytes()).hexdigest()

    @property
    def authority_fingerprints(self) -> list[str]:
        """Name and SHA-256 of each trusted authority."""
        found = x509.load_pem_x509_certificates(self.authority.encode())
        named = (one_line(each.subject.rfc4514_string(), 100) for each in found)
        prints = (sha256(each.public_bytes(Encoding.DER)).hexdigest() for each in found)
        return [f"{name}: {each}" for name, each in zip(named, prints, strict=True)]


def create_kit(
    folder: Path, party: str, coordinator: str, address: str, release_key: Path | None = None
) -> Kit:
    """Gather a kit from the folder of an authority.

    Parameters
    ----------
    folder : Path
        Folder with ca.crt and ca.crl.
    party, coordinator : str
        Their names.
    address : str
        HOST:PORT of the coordinator.
    release_key : Path, optional
        The coordinator's public key; by default NAME.release.pub of the folder, if it exists.

    """
    PeerVerifier(folder / "ca.crt", folder / "ca.crl")
    check_name(party)
    check_name(coordinator)
    known = folder / f"{coordinator}.{PUBLIC_KEY}"
    path = known if release_key is None and known.exists() else release_key
    authority = pem_files.read(folder / "ca.crt", bytes.decode, "a certificate")
    revoked = pem_files.read(folder / "ca.crl", bytes.decode, "a revocation list")
    key = "" if path is None else pem_files.read(path, _release_key, "a public key")
    kit = Kit(party, coordinator, address, authority, revoked, key)
    _check(kit, "the kit")
    return kit


def read_kit(path: Path) -> Kit:
    """Read a kit from others; reject one that is too large, damaged, or has a private key."""
    data = pem_files.read_limited(path, MAX_BYTES, "a kit")
    try:
        content = json.loads(data)
        kind = content.pop("kind")
        kit = Kit(**content)
        texts = all(isinstance(each, str) for each in asdict(kit).values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = one_line(str(error), 200)
        raise CertificateError(f"{path}: expected an enrolment kit ({reason})") from error
    if kind != KIND or not texts:
        raise CertificateError(f"{path}: expected an enrolment kit of the kind {KIND!r}")
    check_name(kit.party)
    check_name(kit.coordinator)
    _check(kit, str(path))
    return kit


def unpack_kit(kit: Kit, folder: Path) -> list[Path]:
    """Write the files of a kit into a folder, which may have none of them; return their paths."""
    release = f"{kit.coordinator}.{PUBLIC_KEY}"
    key = f'release_key = "{release}"\n' if kit.release_key else ""
    config = CONFIG.format(name=kit.party, address=kit.address, release_key=key)
    contents = {
        "ca.crt": kit.authority,
        "ca.crl": kit.revocation_list,
        f"{kit.party}.toml": config,
        **({release: kit.release_key} if kit.release_key else {}),
    }
    paths = {folder / name: text for name, text in contents.items()}
    pem_files.check_absent(*paths)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CertificateError(f"{folder}: cannot be created ({error.strerror})") from error
    written: list[Path] = []
    try:
        for path, text in paths.items():
            mode = OWNER_ONLY if path.suffix == ".toml" else WORLD_READABLE
            pem_files.write_new(path, text.encode(), mode)
            written.append(path)
        # The list must be that of the authority.
        PeerVerifier(folder / "ca.crt", folder / "ca.crl")
        if kit.release_key:
            pem_files.read(folder / release, _release_key, "a public key")
    except CertificateError:
        for path in written:
            path.unlink()
        raise
    return written


def _check(kit: Kit, where: str) -> None:
    if any(SECRET in each for each in asdict(kit).values()):
        raise CertificateError(f"{where}: has a private key; its owner must replace that key")
    if len(kit.address) > MAX_ADDRESS or not ADDRESS.fullmatch(kit.address):
        raise CertificateError(f"{where}: expected HOST:PORT as address of the coordinator")


def _release_key(data: bytes) -> str:
    if not isinstance(load_pem_public_key(data), Ed25519PublicKey):
        raise ValueError("not an Ed25519 key")
    return data.decode()
