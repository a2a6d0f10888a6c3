"""The net of a party's encoder, built from the configuration of the encoder."""

from collections.abc import Mapping, Sequence
from threading import Lock

import torch

from xvfl.config import EncoderConfig, LossConfig, NetConfig, PrivacyConfig
from xvfl.methods.build import build_parties
from xvfl.nets import NetOrBuilder
from xvfl.nets.party_net import PartyNet
from xvfl.options import NUMBER_DIM, PRIVATE_WIDTH, Options
from xvfl.primitives.layout import Layout

WIDTH = 256
"""Default width of embeddings without differential privacy."""
TRAINED, NOT_TRAINED = LossConfig(method="xvfl+"), LossConfig(method="standalone")
"""Methods whose parties have a decoder, which trains the encoder, and whose parties have none."""

BUILDING = Lock()
"""Held while an encoder is built: parties in one process may have threads, and torch's random state
is global."""


def encoder_config(options: Options) -> EncoderConfig:
    """Return the configuration of all encoders of a run in one process.

    They have the sizes, the epochs, the precision, ε and δ of the run's options. Batch size,
    learning rate and optimizer of the options are those of the heads.
    """
    net, train, privacy = options.net, options.train, options.privacy
    return EncoderConfig(
        epochs=train.epochs,
        embedding_dim=net.embedding_dim,
        hidden_dim=net.hidden_dim,
        number_embedding_dim=net.number_embedding_dim,
        skip_rank=net.skip_rank or 0,
        n_blocks=net.n_blocks,
        base_channels=net.base_channels,
        precision=train.precision,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
    )


def encoder_net_config(config: EncoderConfig) -> NetConfig:
    """Return the sizes of an encoder's nets, without automatic values."""
    learns = config.epsilon is None
    number = config.number_embedding_dim
    return NetConfig(
        embedding_dim=config.embedding_dim or (WIDTH if learns else PRIVATE_WIDTH),
        hidden_dim=config.hidden_dim,
        n_blocks=config.n_blocks,
        base_channels=config.base_channels,
        seeing_completers=False,
        number_embedding_dim=NUMBER_DIM * learns if number is None else number,
        skip_rank=config.skip_rank,
        members=1,
        heads=1,
    )


def encoder_privacy(config: EncoderConfig) -> PrivacyConfig:
    """Return the privacy options of a model with this encoder."""
    return PrivacyConfig("no_gradients", epsilon=config.epsilon, delta=config.delta)


def build_encoder(
    name: str, layout: Layout, config: EncoderConfig, seeds: Sequence[int]
) -> PartyNet:
    """Build an encoder with embeddings in [-1, 1], and the decoder that trains it."""
    net, privacy = encoder_net_config(config), encoder_privacy(config)
    with BUILDING, torch.random.fork_rng(devices=[]):
        return build_encoders({name: layout}, net, privacy, seeds)[name]


def build_encoders(
    layouts: Mapping[str, Layout],
    net: NetConfig,
    privacy: PrivacyConfig,
    seeds: Sequence[int],
    bottoms: Mapping[str, NetOrBuilder] | None = None,
    completers: Mapping[str, NetOrBuilder] | None = None,
) -> dict[str, PartyNet]:
    """Build the encoder of each party, with custom nets in place of the defaults."""
    loss = TRAINED if privacy.epsilon is None else NOT_TRAINED
    return build_parties(layouts, net, loss, seeds, bottoms, completers, privacy)
