"""The net of a party's encoder, built from the party's own configuration."""

from collections.abc import Sequence

from xvfl.config import EncoderConfig, LossConfig, NetConfig, PrivacyConfig
from xvfl.federation.build import build_parties
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import Layout

NO_GRADIENTS = PrivacyConfig("no_gradients")


def encoder_net_config(config: EncoderConfig) -> NetConfig:
    """Return the sizes of an encoder's nets."""
    return NetConfig(
        embedding_dim=config.embedding_dim,
        hidden_dim=config.hidden_dim,
        n_blocks=config.n_blocks,
        base_channels=config.base_channels,
        seeing_completers=False,
        number_embedding_dim=config.number_embedding_dim,
        skip_rank=config.skip_rank,
        members=1,
        heads=1,
    )


def build_encoder(
    name: str, layout: Layout, config: EncoderConfig, seeds: Sequence[int]
) -> PartyNet:
    """Build an encoder with embeddings in [-1, 1], and the decoder that trains it."""
    net = encoder_net_config(config)
    parties = build_parties({name: layout}, net, LossConfig(), seeds, privacy=NO_GRADIENTS)
    return parties[name]
