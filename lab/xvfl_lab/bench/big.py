"""Benchmark of tables larger than memory; runs only if named, since it needs disk space."""

import tempfile
from pathlib import Path

from xvfl_lab.bench.outcome import Claim, Line, Outcome
from xvfl_lab.bench.sections import Plan

ROWS, STEPS, RATE_STEPS = (1_000_000, 4_000_000), 500, 100
EQUAL, RATE = 1.1, 0.8


def big(plan: Plan) -> Outcome:
    """Measure memory by the number of rows, and rates against in-memory training and prediction.

    Needs the whole package and 5 GB of temporary disk space.
    """
    from xvfl_lab.big_tables import measure, rates

    sizes, steps = (ROWS, STEPS) if not plan.quick else ((2_000, 4_000), 5)
    memory, measured = [], {}
    for number, rows in enumerate(sizes):
        with tempfile.TemporaryDirectory() as folder:
            memory.append(measure(rows, Path(folder), steps)["steps_mb"])
            if number == 0:
                measured = rates(Path(folder), min(2 * steps, RATE_STEPS))
    grown, rate = memory[-1] / memory[0], measured["of_memory_rate"]
    step, predicted = measured["streamed_step_ms"], measured["predicted_rows_s"]
    lines = [
        Line("big", f"{rows} rows", "streamed, resident", each, "MB", each / memory[0], "fewest")
        for rows, each in zip(sizes, memory, strict=True)
    ]
    case = f"{sizes[0]} rows"
    lines += [
        Line("big", case, "streamed step", step, "ms", 1 / rate, "memory"),
        Line("big", case, "predicted", predicted, "rows/s", measured["of_model_rate"], "model"),
    ]
    claims = (
        Claim(f"{sizes[-1]} / {sizes[0]} rows: resident memory", grown, EQUAL, False),
        Claim("streamed rate / rate in memory", rate, RATE, True),
    )
    return Outcome(tuple(lines), claims)
