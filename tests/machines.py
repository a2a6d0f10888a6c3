"""Several machines on one: network namespaces, joined by a bridge."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.two_machines import Machine

HUB = f"xvfl-hub-{os.getpid()}"


def may_create_machines() -> bool:
    """Return whether this process may create network namespaces, links and bridges."""
    try:
        with machines(["try"]):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextmanager
def machines(names: Sequence[str]) -> Iterator[dict[str, Machine]]:
    """Create machines by name, each with one address; remove them at the end."""
    made = {
        name: Machine(f"xvfl-{name}-{os.getpid()}", f"10.78.0.{number}")
        for number, name in enumerate(names, 1)
    }
    try:
        _ip("netns", "add", HUB)
        _ip("-n", HUB, "link", "add", "bridge", "type", "bridge")
        _ip("-n", HUB, "link", "set", "bridge", "up")
        for number, machine in enumerate(made.values(), 1):
            _add(machine, f"port{number}")
        yield made
    finally:
        for namespace in (HUB, *(each.namespace for each in made.values())):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _add(machine: Machine, port: str) -> None:
    own = machine.namespace
    _ip("netns", "add", own)
    _ip("link", "add", "eth0", "netns", own, "type", "veth", "peer", "name", port, "netns", HUB)
    _ip("-n", HUB, "link", "set", port, "master", "bridge", "up")
    _ip("-n", own, "address", "add", f"{machine.address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", own, "link", "set", device, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
