"""The coordinator's heads as their folders tell: state, origin, and what stops their use."""

from xvfl.model.registry.head_facts import (
    FINISHED_STATES,
    INDEX,
    RETIRED,
    TRAINING_LOCK,
    describe_head,
    head_numbers,
    head_problems,
    list_heads,
    name_head,
)
from xvfl.model.registry.retire import retire_head

__all__ = [
    "FINISHED_STATES",
    "INDEX",
    "RETIRED",
    "TRAINING_LOCK",
    "describe_head",
    "head_numbers",
    "head_problems",
    "list_heads",
    "name_head",
    "retire_head",
]
