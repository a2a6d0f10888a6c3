"""Replace the automatic values of a run's options: one function for every way to train.

Estimators, `xvfl train`, the coordinator, `xvfl audit` and the lab call `resolve_options` once,
when the tables are known. Everything below takes its result. Where a run is trained changes two
options only, `label_protection` and `members`; all others follow from these and from the tables.
With `no_gradients`, the options are those of heads on uploads, and of encoders in one process.

Three options stay automatic because they are chosen from rows: `batch_size` by the trainer, unless
several members have few rows; `unmasked_copies` and `full_threshold` by each party.
"""

import math
from dataclasses import dataclass, replace

from xvfl.config import (
    LossConfig,
    NetConfig,
    PrivacyConfig,
    TrainConfig,
)
from xvfl.errors import ConfigError

Section = NetConfig | LossConfig | TrainConfig | PrivacyConfig


@dataclass(frozen=True)
class SeveralMembers:
    """Defaults of several members for tables of one size."""

    members: int
    fewest_epochs: int
    fewest_steps: int
    """About the fewest steps of all epochs."""
    learning_rate: float
    completing_steps: int
    """About the steps that complete features, each of which costs as much as several others."""


FEW_ROWS = SeveralMembers(4, 12, 720, 4e-3, 25)
MANY_ROWS = SeveralMembers(2, 6, 500, 5e-3, 12)
"""With more than `MOST_ROWS` training rows: fewer members and steps cost little there."""
MOST_ROWS = 20_000
DEFAULT_HEADS = 4
"""Heads that are trained on one upload; predictions are averaged."""
PRIVATE_WIDTH = 16
"""Default width of embeddings with differential privacy."""
COMPLETION_INTERVALS = 8, 64
"""Smallest and largest interval between steps of several members that complete features."""
MUON_STEPS = 200
"""Steps from which several members take Muon by default: after fewer, its logits are too small."""
STEPS_PER_EPOCH, BATCH_SIZES = 50, (128, 2048)
"""Steps of an epoch of several members for which the automatic batch size is chosen, and the
smallest and the largest one."""
MASKING_METHODS = ("xvfl+", "laser+mask")
"""Methods that train on masked copies of rows."""
NUMBER_DIM = 8
"""Default size of the embedding of a number."""
MAX_EMBEDDED_NUMBERS = 128
"""Most numbers of a party with embeddings by default: they multiply the inputs of its bottom."""
AUTOMATIC: dict[type[Section], tuple[str, ...]] = {
    NetConfig: (
        *("embedding_dim", "hidden_dim", "number_embedding_dim", "skip_rank", "members", "heads"),
    ),
    LossConfig: ("self_completion", "n_masks", "guidance", "joint_masks"),
    TrainConfig: ("epochs", "optimizer", "learning_rate", "completion_interval"),
    PrivacyConfig: ("label_protection",),
}
"""The options that `resolve_options` replaces where they are None, by section."""


@dataclass(frozen=True)
class Options:
    """The options of a run, without automatic values."""

    net: NetConfig
    loss: LossConfig
    train: TrainConfig
    privacy: PrivacyConfig

    def __post_init__(self) -> None:
        require_resolved(self.net, self.loss, self.train, self.privacy)


def resolve_options(
    net: NetConfig,
    loss: LossConfig,
    train: TrainConfig,
    privacy: PrivacyConfig,
    *,
    federated: bool,
    image: bool,
    parties: int,
    rows: int,
    numbers: int = 0,
    custom_nets: bool = False,
    keep_batch_size: bool = False,
) -> Options:
    """Replace the automatic values of a run's options.

    Options that are resolved already stay as they are.

    Parameters
    ----------
    net, loss, train, privacy
        The options, with or without automatic values.
    federated : bool
        Whether the parties are separate processes, or simulated as such; otherwise all tables are
        in one process.
    image : bool
        Whether a party has images.
    parties : int
        Number of parties.
    rows : int
        Number of labeled training rows.
    numbers : int, default=0
        Largest number of encoded numbers of a party, in one process.
    custom_nets : bool, default=False
        Whether a bottom, a completer or the head is a custom net; they have one member and one
        head.
    keep_batch_size : bool, default=False
        Whether an automatic batch size stays automatic: with unlabeled rows, the trainer chooses
        it by all rows.

    Returns
    -------
    Options

    Raises
    ------
    ConfigError
        If the number of members is not possible with these nets or this protection.
    """
    privacy = resolve_privacy(privacy, federated=federated)
    if not privacy.sends_gradients:
        check_one_member(net)
        net = replace(net, heads=net.heads or (1 if custom_nets else DEFAULT_HEADS))
        loss = replace(loss, cross_completion=False)
    members = 1
    if not (federated or image or custom_nets or privacy.protects):
        wide = numbers > MAX_EMBEDDED_NUMBERS
        members = MANY_ROWS.members if wide else several_members(rows).members
    net = _resolve_net(net, image, privacy, members, numbers)
    check_members(net, image, custom_nets)
    train = _resolve_train(train, net.members, rows, keep_batch_size)
    loss = _resolve_loss(loss, net.members, image, parties, train.completion_interval)
    return Options(_hide_from_completers(net, loss), loss, train, privacy)


def several_members(rows: int) -> SeveralMembers:
    """Return the defaults of several members for this number of training rows."""
    return MANY_ROWS if rows > MOST_ROWS else FEW_ROWS


def resolve_privacy(privacy: PrivacyConfig, *, federated: bool) -> PrivacyConfig:
    """Replace an automatic label protection.

    It depends on `federated` and on differential privacy.
    """
    if privacy.label_protection is not None:
        return privacy
    protected = federated or privacy.epsilon is not None
    return replace(privacy, label_protection="no_gradients" if protected else "off")


def resolve_saved(
    net: NetConfig, loss: LossConfig, privacy: PrivacyConfig, *, image: bool
) -> tuple[NetConfig, LossConfig]:
    """Replace what a saved model leaves automatic: options that are newer than the model.

    Models of this version leave nothing automatic that prediction needs.
    """
    net = _resolve_net(net, image, privacy, 1)
    loss = _resolve_loss(loss, net.members, image, parties=2, completion_interval=1)
    return _hide_from_completers(net, loss), loss


def max_embedding_width(net: NetConfig) -> int:
    """Return the most numbers in a row's embedding of one branch, whatever the parties hold.

    For a coordinator that does not know yet whether a party has images.
    """
    off = PrivacyConfig("off")
    nets = [_resolve_net(net, image, off, 1) for image in (False, True)]
    return max(each.embedding_dim * each.members for each in nets)


def check_members(net: NetConfig, image: bool = False, custom_nets: bool = False) -> None:
    """Reject several members, or several heads, where only one is supported."""
    if (net.heads or 1) > 1 and custom_nets:
        raise ConfigError(
            f"heads: expected 1 with custom nets, got {net.heads}; several heads need default nets"
        )
    if (net.members or 1) <= 1:
        return
    if image or custom_nets:
        raise ConfigError(
            f"members: expected 1 with {'images' if image else 'custom nets'}, got "
            f"{net.members}; several members need tables and default nets"
        )


def check_one_member(net: NetConfig) -> None:
    """Reject several members where parties upload."""
    if (net.members or 1) > 1:
        raise ConfigError(
            f"members: expected 1 with label_protection 'no_gradients', got {net.members}; each "
            "party uploads the embeddings of one encoder: set `heads`, the number of heads on it"
        )


def require_resolved(*sections: Section) -> None:
    """Reject options that still have automatic values."""
    for section in sections:
        for name in AUTOMATIC[type(section)]:
            if getattr(section, name) is None:
                raise ConfigError(
                    f"{name}: expected a resolved value, got None (automatic); call "
                    "`xvfl.options.resolve_options` first"
                )


def _resolve_net(
    net: NetConfig, image: bool, privacy: PrivacyConfig, default_members: int, numbers: int = 0
) -> NetConfig:
    """Replace automatic sizes.

    Bounded embeddings are wider, because bottoms do not learn what the label needs. Those with
    differential privacy are narrow: their noise is the same for every number of an embedding of
    norm 1, so wide embeddings give a head more noise to fit, and hardly more signal.
    """
    members = net.members or default_members
    d, hidden = (32, 64) if members > 1 else (64, 128)
    if image or privacy.bounded:
        d, hidden = 256, 256
    if privacy.epsilon is not None:
        d = PRIVATE_WIDTH
    number = net.number_embedding_dim
    if number is None:
        several = members > 1 and not privacy.protects and numbers <= MAX_EMBEDDED_NUMBERS
        number = NUMBER_DIM if several or privacy.trains_encoders else 0
    return replace(
        net,
        members=members,
        embedding_dim=net.embedding_dim or d,
        hidden_dim=net.hidden_dim or hidden,
        number_embedding_dim=number,
        skip_rank=net.skip_rank or 0,
        heads=net.heads or 1,
    )


def _resolve_train(
    train: TrainConfig, members: int, rows: int, keep_batch_size: bool
) -> TrainConfig:
    """Replace automatic values of training."""
    several = several_members(rows) if members > 1 else None
    epochs, interval, optimizer = train.epochs or 60, 1, train.optimizer
    if several:
        if not (train.batch_size or train.epochs or keep_batch_size):
            train = replace(train, batch_size=_batch_size(rows))
        steps = max(rows // train.batch_size_for(rows), 1)
        enough = max(several.fewest_epochs, math.ceil(several.fewest_steps / steps))
        epochs = train.epochs or min(enough, epochs)
        if epochs * steps >= MUON_STEPS:
            optimizer = optimizer or "muon"
        if optimizer != "page":
            least, most = COMPLETION_INTERVALS
            interval = min(max(epochs * steps // several.completing_steps, least), most)
    return replace(
        train,
        epochs=epochs,
        optimizer=optimizer or "adamw",
        learning_rate=train.learning_rate or (several.learning_rate if several else 2e-3),
        completion_interval=train.completion_interval or interval,
    )


def _batch_size(rows: int) -> int:
    """Choose the batch size of several members by the number of training rows."""
    least, most = BATCH_SIZES
    wanted: int = 2 ** round(math.log2(max(rows, 1) / STEPS_PER_EPOCH)) if rows > least else least
    return min(max(wanted, least), most)


def _resolve_loss(
    loss: LossConfig, members: int, image: bool, parties: int, completion_interval: int
) -> LossConfig:
    """Replace automatic values of the loss.

    With a `completion_interval` above 1, `unmasked_copies` stays automatic: it depends on a party's
    rows.
    """
    weight, some_steps = loss.self_completion, completion_interval > 1
    if weight is None:
        lower = image and parties > 2 and loss.method == "xvfl+"
        weight = 2 / parties if lower else 1.0
    unmasked, guidance = loss.unmasked_copies, loss.guidance
    if unmasked is None and not (some_steps and loss.method in MASKING_METHODS):
        unmasked = 0.0
    if guidance is None:
        guidance = 1.0 if some_steps and loss.method == "xvfl+" else 0.5
    return replace(
        loss,
        self_completion=weight,
        n_masks=loss.n_masks or (1 if members > 1 else 2),
        unmasked_copies=unmasked,
        guidance=guidance,
        joint_masks=loss.joint_masks if loss.joint_masks is not None else not image,
    )


def _hide_from_completers(net: NetConfig, loss: LossConfig) -> NetConfig:
    """Let completers of `xvfl+` see their party's features with self completion only."""
    sees = loss.method != "xvfl+" or loss.self_completion_weight > 0
    return net if sees else replace(net, seeing_completers=False)
