"""The outcome of a run."""

from dataclasses import dataclass

from xvfl.model.evaluation import Evaluation


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    step: int
    """The last training step."""
    evaluation: Evaluation | None = None
    """None if the run was stopped before it finished."""
    uninformed: tuple[str, ...] = ()
    """Parties that have not received their release yet."""
