"""A FLARE job for tests: 200 steps over the sites, weights written to a folder.

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
from xvfl.wire.transport import Transport

STEPS, METHOD, RECONSTRUCTION = 200, "xvfl+", 0.7
TRAIN = TrainConfig(
    epochs=STEPS, batch_size=10, optimizer="adamw", learning_rate=1e-2, patience=0, device="cpu"
)
SITES = ("p0", "p1")


def endpoint(site: str, props: Mapping[str, Any]) -> Endpoint:
    """Put a site's party behind an endpoint that leaves its weights behind."""
    torch.set_num_threads(1)
    made = make_federation(len(SITES), torch.float32, dropout=0.3)
    at = SITES.index(site)
    found = make_endpoints(made, RECONSTRUCTION)[at]
    answer = found.handle

    def handle(frame: bytes) -> bytes:
        reply = answer(frame)
        if found.over:
            save_file(copy_weights(made.parties[at]), Path(props["folder"]) / f"{site}.safetensors")
        return reply

    found.handle = handle  # type: ignore[method-assign]
    return found


def run(lines: Mapping[str, Transport], props: Mapping[str, Any]) -> None:
    """Train over the lines and leave the heads behind."""
    torch.set_num_threads(1)
    made = make_federation(len(SITES), torch.float32, dropout=0.3)
    method = make_small_method(made, METHOD)
    split = begin_run([lines[site] for site in SITES], SITES, settings_json(TRAIN, RECONSTRUCTION))
    trainer = Trainer(split, method, made.rows, TRAIN)
    for _ in trainer.run(lambda: 0.0):
        pass
    split.flush()
    for line in lines.values():
        line.exchange(End(split.counters.turn + 1, "finished")).result(30)
    save_file(copy_weights(method.heads), Path(props["folder"]) / "heads.safetensors")


def copy_weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Take a net's weights."""
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
        env = PocEnv(clients=list(SITES), num_clients=len(SITES))
    job = recipe.run(env)
    job.get_result(timeout=300.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
