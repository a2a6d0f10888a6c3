"""What a run demands of its parties, from the coordinator's configuration."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from xvfl.config import NetConfig
from xvfl.errors import RunError
from xvfl.federation.membership import RunTerms
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.run_settings import RunSettings
from xvfl.methods import method_spec
from xvfl.primitives.layout import Feature, Layout
from xvfl.service.config import CoordinatorConfig
from xvfl.service.labelled_rows import Labelled


def terms(
    config: CoordinatorConfig, net: NetConfig, labelled: Labelled, run: str, warm: str
) -> RunTerms:
    """Put together what every party is told, and what is expected of it."""
    said = RunSettings(
        config.train.random_state,
        config.loss.method,
        net,
        config.train,
        config.loss.reconstruction_weight,
        config.loss.full_threshold,
        warm,
        config.payload,
    )
    return RunTerms(
        run,
        json.dumps(asdict(said)),
        net.embedding_dim * method_spec(config.loss.method).branches,
        config.min_parties,
        labelled.training(),
        config.timeouts.join,
        said.payload,
        labelled.matched(),
    )


def stand_ins(
    peers: Sequence[RemoteParty], known: Mapping[str, bool], wait_s: float
) -> dict[str, Layout]:
    """Stand for layouts that only their parties know; wait for who has not said its data's kind.

    `known` says of parties whether their rows are images. The heads' kind is all it decides here.
    """
    images, until = dict(known), time.monotonic() + wait_s
    for peer in peers:
        while peer.name not in images:
            hello = peer.transport.hello()
            if hello is not None:
                images[peer.name] = hello.image
            elif time.monotonic() > until:
                raise RunError(f"party {peer.name!r} did not come; start it with `xvfl party`")
            else:
                time.sleep(0.05)
    return {name: _stand_in(image) for name, image in images.items()}


def _stand_in(image: bool) -> Layout:
    return Layout(image=(1, 1, 1)) if image else Layout((Feature("x", "numeric", 1),))
