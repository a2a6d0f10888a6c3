"""Options of heads on secret shares, and why other protocols are refused."""

from dataclasses import dataclass
from typing import Literal

from xvfl.errors import ConfigError, unknown
from xvfl.service.addresses import parse_address
from xvfl.wire.tls import Tls

Engine = Literal["spu"]
N_NODES = 3
REFUSED = {
    "semi2k": "in SPU, by default one of the nodes deals the correlated randomness, and can "
    "compute every secret from it",
    "cheetah": "it has two nodes, which would have to be the coordinator and one party",
}
"""Other protocols of SPU, and why they are refused."""


@dataclass(frozen=True)
class SecretOptions:
    """The nodes that train on shares; all sides must name the same ones."""

    nodes: tuple[str, ...] = ()
    """Files of the three nodes (`xvfl secret key`): name, address, certificate and public key."""
    protocol: str = "aby3"
    """Protocol of SPU: `aby3`, three nodes of which no two collude."""
    hidden: int = 32
    """Hidden units of the head."""
    program: str = "xvfl-secret"
    """The command `xvfl-secret`, in an environment of its own."""

    def __post_init__(self) -> None:
        if self.protocol in REFUSED:
            raise ConfigError(
                f"protocol: {self.protocol!r} is refused: {REFUSED[self.protocol]}; use 'aby3'"
            )
        if self.protocol != "aby3":
            raise ConfigError(f"protocol: {unknown('protocol', self.protocol, ('aby3',))}")
        if not 1 <= self.hidden <= 1024:
            raise ConfigError(f"hidden: expected 1 to 1024, got {self.hidden}")
        if self.nodes and len(set(self.nodes)) != N_NODES:
            raise ConfigError(f"nodes: expected the files of {N_NODES} nodes, got {self.nodes}")


@dataclass(frozen=True)
class SecretTraining:
    """How the nodes train the head: minibatch gradient descent with momentum."""

    epochs: int = 10
    """Passes through the training rows."""
    batch_rows: int = 512
    """Rows of a batch; a power of two is exact in fixed-point arithmetic."""
    learning_rate: float = 0.25
    """Step size."""
    momentum: float = 0.875
    """Momentum."""
    checkpoint_interval: int = 50
    """Steps between checkpoints of the shares."""

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_rows, self.checkpoint_interval) < 1:
            raise ConfigError("epochs, batch_rows, checkpoint_interval: expected 1 or more")
        if not (2**-12 <= self.learning_rate <= 16 and 0 <= self.momentum < 1):
            raise ConfigError(
                "learning_rate, momentum: expected 1/4096 to 16, and 0 to below 1, got "
                f"{self.learning_rate} and {self.momentum}"
            )


@dataclass(frozen=True)
class NodeConfig:
    """Configuration of `xvfl secret node`."""

    address: str
    """HOST:PORT at which the other nodes reach this one."""
    coordinator: str
    """Name of the coordinator, as in its certificate: it may send labels and requests."""
    parties: tuple[str, ...]
    """Names of the parties, as in their certificates: they may send uploads."""
    tls: Tls
    """Certificate and key of this process, and the certificate authority it trusts."""
    secret_options: SecretOptions = SecretOptions()
    """The nodes that hold the shares, this one included."""
    listen: str | None = None
    """HOST:PORT to listen on; by default `address`."""
    state_dir: str = "state"
    """Folder of key, shares, checkpoints and answers."""
    revocation_list: str | None = None
    """Revocation list of the authority (PEM)."""
    max_bytes: int = 2**35
    """Largest size of a share, in bytes."""
    wait: float = 600.0
    """Seconds to wait for the other nodes."""
    timeout: float = 120.0
    """Seconds without an answer of another node after which it counts as lost."""

    def __post_init__(self) -> None:
        for option in ("address", "listen"):
            if (value := getattr(self, option)) is not None:
                parse_address(value, option)
        if not self.parties or self.max_bytes < 1 or min(self.wait, self.timeout) <= 0:
            raise ConfigError("expected parties, and max_bytes, wait and timeout above 0")


def check_secret(secret: Engine | None, options: SecretOptions) -> None:
    """Reject options of nodes without `secret`, and `secret` without nodes."""
    if (secret is None) != (not options.nodes):
        raise ConfigError(
            'secret: expected secret = "spu" together with `nodes` in [secret_options], or neither'
        )


def refuse_plain(secret: Engine | None, what: str) -> None:
    """Raise if a configuration demands shares, and `what` would send or need plain embeddings."""
    if secret is not None:
        raise ConfigError(
            f'{what} works on plain embeddings, and this configuration has secret = "{secret}"; '
            "use the commands of `xvfl secret`"
        )
