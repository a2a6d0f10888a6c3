"""The lab's own methods. Importing this package registers them, as any other method from outside.

`METHODS` lists all methods of the experiments, in the order of figures and tables.
"""

from xvfl.config import LossConfig
from xvfl.errors import ConfigError
from xvfl.methods import Method, MethodParts, MethodSpec, register_method
from xvfl_lab.methods.fedcvt import FedCVT, FedCVTConfig, ReferenceMemory
from xvfl_lab.methods.iavfl import IAVFL

METHODS = ("xvfl+", "xvfl", "standalone", "vanilla", "iavfl", "fedcvt", "laser", "laser+mask")


def _iavfl(config: LossConfig, parts: MethodParts) -> Method:
    return IAVFL(parts.joint(), parts.heads(parts.width))


def _fedcvt(config: LossConfig, parts: MethodParts) -> Method:
    if parts.parties != 2:
        raise ConfigError(
            f"method fedcvt: expected two parties, got {parts.parties}; it is defined for two "
            "parties only: choose another method, or two of the parties"
        )
    both = 2 * parts.width
    memory = ReferenceMemory(both, runs=len(parts.seeds))
    return FedCVT(parts.head(2 * both), parts.heads(both), memory, FedCVTConfig())


register_method("iavfl", MethodSpec(_iavfl, branches=2))
register_method("fedcvt", MethodSpec(_fedcvt, branches=2))
