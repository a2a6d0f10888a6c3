"""The nodes that all sides agree on: a signed file of each, with its address and public key."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from ssl import PEM_cert_to_DER_cert

from xvfl.certs import PeerVerifier
from xvfl.certs.sealed_file import KEY_BYTES, create_sealing_key, read_sealing_key
from xvfl.certs.signed_document import read_document, sign_document
from xvfl.errors import ConfigError, RunError, WireError, XVFLError
from xvfl.model.run_dir import RunDir
from xvfl.service.addresses import parse_address
from xvfl.service.secret_config import N_NODES, SecretOptions
from xvfl.service.uploads.file_exchange import KEY
from xvfl.wire.tls import Tls

NODE = "xvfl node 1"
MAX_FILE_BYTES = 2**16
END = "-----END CERTIFICATE-----\n"


@dataclass(frozen=True)
class Node:
    """A node, as its file describes it."""

    name: str
    address: str
    """HOST:PORT at which the other nodes reach it."""
    key: bytes
    """Public key (X25519) to which shares are encrypted."""
    pin: str
    """SHA-256 of its certificate (DER), in hexadecimal."""


@dataclass(frozen=True)
class Agreement:
    """The three nodes in the order of their names, which is that of the shares."""

    nodes: tuple[Node, ...]
    options: SecretOptions

    @property
    def digest(self) -> str:
        """Digest of protocol, sizes and nodes; all sides must have the same."""
        facts = [self.options.protocol, str(self.options.hidden)]
        facts += [f"{each.name} {each.address} {each.key.hex()} {each.pin}" for each in self.nodes]
        return sha256("\n".join(facts).encode()).hexdigest()

    def describe(self) -> str:
        """Return the digest and the names, for operators to compare."""
        return f"agreement {self.digest[:16]}: {', '.join(each.name for each in self.nodes)}"


def public_key(folder: RunDir) -> bytes:
    """Return the public key of a side; create the pair at the first call."""
    if not folder.has(KEY):
        create_sealing_key(folder / KEY)
    return read_sealing_key(folder / KEY).public_key().public_bytes_raw()


def write_node(folder: RunDir, tls: Tls, address: str, out: Path) -> None:
    """Write the file of a node, signed with its certificate."""
    parse_address(address, "address")
    content = {"address": address, "key": public_key(folder).hex()}
    RunDir(out.parent).write_bytes(out.name, sign_document(tls, NODE, content))


def read_agreement(options: SecretOptions, peers: PeerVerifier) -> Agreement:
    """Read and verify the files of the nodes."""
    nodes = sorted((_read_node(Path(each), peers) for each in options.nodes), key=lambda n: n.name)
    for kind, what in (("name", "name"), ("address", "address"), ("pin", "certificate")):
        if len({getattr(each, kind) for each in nodes}) != N_NODES:
            raise ConfigError(f"secret_options.nodes: two nodes have the same {what}")
    return Agreement(tuple(nodes), options)


def check_owners(names: Sequence[str], agreement: Agreement) -> None:
    """Raise unless answers are those of the three nodes."""
    expected = [each.name for each in agreement.nodes]
    if list(names) != expected:
        raise RunError(f"expected a file of each node ({', '.join(expected)}), got {names}")


def _read_node(path: Path, peers: PeerVerifier) -> Node:
    try:
        with path.open("rb") as file:
            document = read_document(file.read(MAX_FILE_BYTES), NODE, peers.check)
        address, key = document.get("address", str), bytes.fromhex(document.get("key", str))
        parse_address(address, "address")
        if len(key) != KEY_BYTES:
            raise WireError(f"key: expected {KEY_BYTES} bytes")
        leaf = document.certificate.decode("ascii").partition(END)[0] + END
        pin = sha256(PEM_cert_to_DER_cert(leaf)).hexdigest()
        return Node(document.owner, address, key, pin)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (XVFLError, ValueError) as error:
        raise RunError(f"{path}: the file of a node is rejected: {error}") from error
