"""A program that the nodes run on shares: compiled once, from a function on arrays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import spu
from numpy.typing import NDArray
from spu import libspu
from spu.utils import frontend

from xvfl_secret.settings import NODES
from xvfl_secret.shares import Share, runtime_config, to_array, to_share

PUBLIC, SECRET = libspu.Visibility.VIS_PUBLIC, libspu.Visibility.VIS_SECRET


class Engine:
    """SPU's runtime of one node: variables by name, and programs that compute with them."""

    def __init__(self, link: Any, profile: bool = False) -> None:
        self._runtime = spu.Runtime(link, runtime_config(profile))
        self._io = spu.Io(NODES, runtime_config())

    def set_share(self, name: str, array: Share) -> None:
        """Set a secret variable to this node's share."""
        self._runtime.set_var(name, to_share(array))

    def set_public(self, name: str, values: NDArray[Any]) -> None:
        """Set a public variable; all nodes must set the same."""
        numbers = np.ascontiguousarray(values, np.float32)
        self._runtime.set_var(name, self._io.make_shares(numbers, PUBLIC)[0])

    def share(self, name: str) -> Share:
        """Return this node's share of a variable."""
        return to_array(self._runtime.get_var(name))

    def run(self, program: Any) -> None:
        """Run a program; returns when the other nodes have done their part."""
        self._runtime.run(program)


def compile_program(
    function: Callable[..., Any],
    shapes: Mapping[str, Sequence[int]],
    public: frozenset[str],
    outputs: Sequence[str],
) -> Any:
    """Compile a function of arrays to a program that reads and writes variables.

    Parameters
    ----------
    function
        Of arrays, in the order of `shapes`; returns as many arrays as `outputs` has names.
    shapes
        Shape of each input, by name.
    public
        The inputs that all nodes may see.
    outputs
        Names of the outputs; an input of the same name is replaced.
    """
    program, _ = frontend.compile(
        frontend.Kind.JAX,
        function,
        [np.zeros(tuple(shape), np.float32) for shape in shapes.values()],
        {},
        list(shapes),
        [PUBLIC if name in public else SECRET for name in shapes],
        lambda _: list(outputs),
    )
    return program
