"""The model card of a bundle, in Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xvfl.data.encoder import TableEncoder
from xvfl.data.sources import Encoder

KINDS = {"number": "number", "duration": "duration", "date": "date"}


def model_card(manifest: Mapping[str, Any], encoders: Mapping[str, Encoder]) -> str:
    """Describe a model: what it predicts, from which columns, how it was trained and tested."""
    return "\n".join(_lines(manifest, encoders)) + "\n"


def _lines(manifest: Mapping[str, Any], encoders: Mapping[str, Encoder]) -> Iterator[str]:
    training = manifest["training"]
    yield "# Model card"
    yield ""
    yield from _task(manifest["task"], manifest["prior"])
    yield ""
    yield f"- method: {training['method']}, {training['members']} members"
    yield f"- trained with the parties: {', '.join(training['parties'])}"
    yield f"- label protection in training: {training['label_protection']}"
    for name in ("rows", "run"):
        if name in training:
            yield f"- {name}: {training[name]}"
    yield f"- xvfl {manifest['version']}"
    yield from _predictions(manifest)
    for name, encoder in encoders.items():
        yield from _columns(name, encoder)
    if "evaluation" in training:
        yield from _evaluation(training["evaluation"])


def _task(task: Mapping[str, Any], prior: Sequence[float]) -> Iterator[str]:
    classes = task.get("classes")
    if not classes:
        yield f"Predicts a number; its mean in the training rows is {prior[0]:g}."
        return
    yield f"Predicts one of the classes {', '.join(map(str, classes))}."
    shares = ", ".join(f"{a} {b:.3f}" for a, b in zip(classes, prior, strict=True))
    yield f"Shares of the classes in the training rows: {shares}."


def _predictions(manifest: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Predictions", "", "| mode | party | temperature |", "|---|---|--:|")
    for output in manifest["outputs"]:
        yield f"| {output['mode']} | {output['party'] or '–'} | {output['temperature']:.3f} |"


def _columns(party: str, encoder: Encoder) -> Iterator[str]:
    yield from ("", f"## Columns of {party}", "")
    if not isinstance(encoder, TableEncoder):
        yield f"Images with the axes {encoder.axes} and the shape {encoder.shape}."
        return
    yield from ("| column | kind | values |", "|---|---|---|")
    for codec in encoder.to_dict()["codecs"]:
        yield f"| {_cell(codec['name'])} | {_kind(codec)} | {_values(codec)} |"


def _kind(codec: Mapping[str, Any]) -> str:
    return KINDS.get(codec["codec"], "category")


def _values(codec: Mapping[str, Any]) -> str:
    if codec["codec"] == "category":
        values = codec["values"]
        more = f" and {len(values) - 10} more" if len(values) > 10 else ""
        return _cell(", ".join(values[:10]) + more)
    if codec["codec"] == "hashed":
        return "many"
    knots = codec["scale"]["knots"]
    unit = {"date": " s since 1970", "duration": " s"}.get(codec["codec"], "")
    return f"{knots[0]:g} to {knots[-1]:g}{unit}"


def _evaluation(evaluation: Mapping[str, Any]) -> Iterator[str]:
    lines = [line for line in evaluation["lines"] if line.get("metrics")]
    if not lines:
        return
    names = list(lines[0]["metrics"])
    yield from ("", f"## Evaluation on {evaluation['split']} rows", "")
    yield f"| mode | party | rows | {' | '.join(names)} |"
    yield "|---|---|--:|" + "--:|" * len(names)
    for line in lines:
        shown = [_number(line["metrics"].get(name)) for name in names]
        yield f"| {line['mode']} | {line['party']} | {line['rows']} | {' | '.join(shown)} |"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
