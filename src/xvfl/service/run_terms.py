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


def image_parties(
    peers: Sequence[RemoteParty], known: Mapping[str, bool], wait_s: float
) -> dict[str, bool]:
    """Return whether each party holds images; wait for parties that have not connected yet.

    `known` has the parties of an earlier start of the run.
    """
    images, until = dict(known), time.monotonic() + wait_s
    for peer in peers:
        while peer.name not in images:
            hello = peer.transport.hello()
            if hello is not None:
                images[peer.name] = hello.image
            elif time.monotonic() > until:
                raise RunError(f"party {peer.name!r} did not connect; start it with `xvfl party`")
            else:
                time.sleep(0.05)
    return images
