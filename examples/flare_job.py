"""Train with NVIDIA FLARE: a job whose server and sites each read their own configuration.

    python examples/flare_job.py --server server.toml --site bank=bank.toml --site shop=shop.toml

runs it in FLARE's simulator. Add `--export` to write the job's folder, and submit that to a
deployment with `nvflare job submit`. Each path refers to that side's own machine.
"""

import argparse

from nvflare.collab import CollabRecipe
from nvflare.recipe.sim_env import SimEnv

from xvfl.wire.flare import FlareCoordinator, FlareParty


def main() -> None:
    """Build the job and run it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--server", required=True, help="the coordinator's configuration")
    options.add_argument("--site", action="append", required=True, help="NAME=CONFIG, repeat")
    options.add_argument("--workspace", default="flare", help="the simulator's folder")
    chosen, _ = options.parse_known_args()
    sites = dict(each.split("=", 1) for each in chosen.site)
    recipe = CollabRecipe(
        "xvfl", server=FlareCoordinator(), client=FlareParty(), min_clients=len(sites)
    )
    recipe.set_server_prop("config", chosen.server)
    recipe.set_per_site_config({name: {"config": config} for name, config in sites.items()})
    recipe.execute(SimEnv(clients=list(sites), workspace_root=chosen.workspace))


if __name__ == "__main__":
    main()
