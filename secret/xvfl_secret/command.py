"""The command `xvfl-secret`."""

import argparse
import sys
from pathlib import Path

from xvfl_secret.errors import LinkLost, SecretError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        "xvfl-secret", description="Train and evaluate a head on secret shares, with SPU."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    node = commands.add_parser("node", help="run one of the three nodes")
    node.add_argument("settings", type=Path, help="the node's settings (JSON)")
    node.add_argument("--once", action="store_true", help="end if another node is lost")
    split = commands.add_parser("split", help="split arrays into shares for the three nodes")
    split.add_argument("folder", type=Path, help="folder of .npy files")
    split.add_argument("out", type=Path, help="folder to create, with a folder for each node")
    combine = commands.add_parser("combine", help="combine the shares of a result")
    combine.add_argument("shares", type=Path, nargs=3, help="the nodes' shares, in their order")
    combine.add_argument("--out", type=Path, required=True, help="the .npy file to write")
    given = parser.parse_args(arguments)
    try:
        if given.command == "node":
            return _node(given.settings, given.once)
        from xvfl_secret.share_files import combine_files, split_folder

        if given.command == "split":
            split_folder(given.folder, given.out)
        else:
            combine_files(given.shares, given.out)
    except SecretError as error:
        _report(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _report("interrupted; the same command continues")
        return 130
    return 0


def _node(path: Path, once: bool) -> int:
    from xvfl_secret.node import LOST, run_node, run_until_done
    from xvfl_secret.settings import NodeSettings, read

    settings = read(NodeSettings, path)
    if not once:
        return run_until_done(["node", str(path), "--once"], settings.wait, _report)
    name = settings.names[settings.rank]
    try:
        run_node(settings, lambda text: _report(f"{name}: {text}"))
    except LinkLost as error:
        _report(f"{name}: {error}")
        return LOST
    return 0


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
