"""A FLARE job for tests: 60 steps over the sites, weights written to a folder.

python -m tests.wire.flare_job simulator|provisioned FOLDER
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.federation.split_helpers import (
    begin_run,
    make_endpoints,
    make_federation,
    make_small_method,
    settings_json,
)
from xvfl.config import TrainConfig
from xvfl.federation.endpoint import Endpoint
from xvfl.training.loop import Trainer
from xvfl.wire.messages import End
from xvfl.wire.request_ids import next_request_id
from xvfl.wire.transport import Transport

STEPS, METHOD, RECONSTRUCTION = 60, "xvfl+", 0.7
TRAIN = TrainConfig(
    epochs=STEPS,
    batch_size=10,
    optimizer="adamw",
    learning_rate=1e-2,
    patience=0,
    completion_interval=1,
    device="cpu",
)
SITES = ("p0", "p1")


def endpoint(site: str, props: Mapping[str, Any]) -> Endpoint:
    """Build a site's endpoint, which saves the party's weights at the end."""
    torch.set_num_threads(1)
    problem = make_federation(len(SITES), torch.float32, dropout=0.3)
    at = SITES.index(site)
    end = make_endpoints(problem, RECONSTRUCTION)[at]
    answer = end.handle

    def handle(frame: bytes) -> bytes:
        reply = answer(frame)
        if end.end_reason:
            save_file(
                copy_weights(problem.parties[at]), Path(props["folder"]) / f"{site}.safetensors"
            )
        return reply

    end.handle = handle  # type: ignore[method-assign]
    return end


def run(lines: Mapping[str, Transport], props: Mapping[str, Any]) -> None:
    """Train over the transports and save the heads."""
    torch.set_num_threads(1)
    problem = make_federation(len(SITES), torch.float32, dropout=0.3)
    method = make_small_method(problem, METHOD)
    split = begin_run([lines[site] for site in SITES], SITES, settings_json(TRAIN, RECONSTRUCTION))
    trainer = Trainer(split, method, problem.rows, TRAIN)
    for _ in trainer.run(lambda: 0.0):
        pass
    split.flush()
    for line in lines.values():
        line.request(End(next_request_id(), "finished")).result(300)
    save_file(copy_weights(method.heads), Path(props["folder"]) / "heads.safetensors")


def copy_weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy a net's weights."""
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def main(kind: str, folder: str) -> None:
    """Run the job in FLARE's simulator, or in processes provisioned with certificates."""
    from nvflare.collab import CollabRecipe
    from nvflare.recipe.poc_env import PocEnv
    from nvflare.recipe.sim_env import SimEnv

    from xvfl.wire.flare import FlareCoordinator, FlareParty

    recipe = CollabRecipe(
        "xvfl",
        server=FlareCoordinator(run=f"{__spec__.name}:run"),
        client=FlareParty(build=f"{__spec__.name}:endpoint"),
        min_clients=len(SITES),
    )
    recipe.set_server_prop("folder", folder)
    recipe.set_per_site_config({site: {"folder": folder} for site in SITES})
    if kind == "simulator":
        env = SimEnv(clients=list(SITES), workspace_root=str(Path(folder) / "workspace"))
    else:
        # The services may take longer to start than the ten seconds that a login waits.
        extra = {"login_timeout": 300}
        env = PocEnv(clients=list(SITES), num_clients=len(SITES), extra=extra)
    try:
        recipe.run(env).get_result(timeout=900.0)
    finally:
        env.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
