"""The outcome of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from xvfl.model.evaluation import Evaluation


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    step: int
    """The last training step."""
    evaluation: Evaluation | None = None
    """None if the run was stopped before it finished."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Parties that did not take part until the end, and why."""
    uninformed: tuple[str, ...] = ()
    """Parties that have not received the outcome yet."""
    privacy: str = ""
    """Statement on differential privacy, if the run has any."""

    def describe_absent(self) -> str:
        """Describe who did not take part until the end, in one line."""
        each = (f"{name} ({reason})" for name, reason in self.absent.items())
        text = f"finished without {', '.join(each)}"
        if self.uninformed:
            text += f"; not yet informed: {', '.join(self.uninformed)}"
        return text
