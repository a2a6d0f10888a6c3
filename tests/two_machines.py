"""Two machines on one: network namespaces, joined by a link that delays and loses packets.

Each namespace has a TUN device. A thread carries the IP packets from one to the other, so that the
kernel's TCP meets real delays and losses.
"""

import fcntl
import heapq
import os
import random
import select
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 1500


@dataclass(frozen=True)
class Machine:
    """A network namespace with one address."""

    namespace: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs a program on this machine."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def kill_all(self) -> None:
        """Kill all processes on this machine."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True
        )
        for process_id in map(int, found.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)


class Link(threading.Thread):
    """Carries packets between two TUN devices, with a delay in seconds and a rate of loss."""

    def __init__(self, ends: tuple[int, int], delay: float, loss: float) -> None:
        super().__init__(daemon=True)
        self._to = dict(zip(ends, reversed(ends), strict=True))
        self._delay, self._loss = delay, loss
        self._random, self._stop_request = random.Random(0), threading.Event()
        self.carried = self.lost = 0

    def stop(self) -> None:
        """Stop carrying packets."""
        self._stop_request.set()
        self.join()

    def run(self) -> None:
        """Carry packets until `stop`."""
        waiting: list[tuple[float, int, int, bytes]] = []
        while not self._stop_request.is_set():
            timeout = min(0.1, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.1
            ready, _, _ = select.select(list(self._to), [], [], timeout)
            now = time.monotonic()
            for end in ready:
                packet = os.read(end, MTU + 100)
                if self._random.random() < self._loss:
                    self.lost += 1
                    continue
                self.carried += 1
                heapq.heappush(waiting, (now + self._delay, self.carried, self._to[end], packet))
            while waiting and waiting[0][0] <= now:
                _, _, end, packet = heapq.heappop(waiting)
                with suppress(OSError):  # The device is down.
                    os.write(end, packet)


def may_create_namespaces() -> bool:
    """Return whether this process may create network namespaces and TUN devices."""
    return (
        hasattr(os, "geteuid")
        and os.geteuid() == 0
        and Path("/dev/net/tun").exists()
        and _succeeds("ip", "netns", "add", name := f"xvfl-try-{os.getpid()}")
        and _succeeds("ip", "netns", "del", name)
    )


@contextmanager
def two_machines(delay: float, loss: float) -> Iterator[tuple[Machine, Machine, Link]]:
    """Create two machines and their link; remove them at the end."""
    number = os.getpid()
    machines = tuple(Machine(f"xvfl-{side}-{number}", f"10.77.0.{side}") for side in (1, 2))
    ends: list[int] = []
    try:
        for side, machine in enumerate(machines):
            other = machines[1 - side].address
            device = f"xvfl{side}-{number}"[:15]
            ends.append(_open_tun(device))
            _run("ip", "netns", "add", machine.namespace)
            _run("ip", "link", "set", device, "netns", machine.namespace)
            for command in (
                ("ip", "link", "set", "lo", "up"),
                ("ip", "address", "add", machine.address, "peer", other, "dev", device),
                ("ip", "link", "set", device, "mtu", str(MTU), "up"),
            ):
                _run(*machine.command(*command))
        link = Link((ends[0], ends[1]), delay, loss)
        link.start()
        try:
            yield machines[0], machines[1], link
        finally:
            link.stop()
    finally:
        for end in ends:
            os.close(end)
        for machine in machines:
            _succeeds("ip", "netns", "del", machine.namespace)


def _open_tun(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return end


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False
