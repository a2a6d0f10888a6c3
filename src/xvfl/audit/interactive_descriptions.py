"""What each attack on interactive training tries, in words for readers who are not programmers."""

from dataclasses import dataclass

from xvfl.audit.findings import Finding


@dataclass(frozen=True)
class Section:
    """One role and aim, with its attacks."""

    title: str
    aim: str
    attacks: tuple[str, ...]
    remains: str


TRIED = {
    "gradient norm, single step": "Sort rows by the length of the gradient received in the first "
    "training step.",
    "gradient direction, single step": "Compare the gradient of each row in the first step with "
    "that of one row whose label is known.",
    "gradient spectral, single step": "Group the gradients of the first step by their main "
    "directions. No label is known.",
    "gradient norm, all steps": "The same by length, with the mean of all gradients of a row.",
    "gradient direction, all steps": "The same by direction, with the mean of all gradients of a "
    "row.",
    "gradient spectral, all steps": "The same by main directions, with the mean of all gradients "
    "of a row.",
    "model completion, own bottom": "Train a classifier with a few known labels on the party's own "
    "trained net.",
    "model completion, received cues": "Train a classifier with a few known labels on the cues "
    "(mean embeddings of the other parties) received.",
    "cue norm": "Sort rows by the length of the cue received.",
    "cue direction": "Compare the cue of each row with that of one row whose label is known.",
    "cue spectral": "Group the cues by their main directions. No label is known.",
    "decoder, cues": "Learn from known rows to decode another party's features from the cues.",
    "inversion of cues, guessed seed": "Rebuild the other party's first net from the seed and its "
    "name, and invert the first cues.",
    "decoder, embeddings": "Learn from known rows to decode the features from the embeddings.",
    "decoder, completed embeddings": "The same from completed embeddings.",
    "inversion, guessed seed": "Rebuild the party's first net from the coordinator's seed and the "
    "party's name, and invert the first embeddings.",
    "inversion, stolen net": "Invert embeddings with the party's own trained net. The attacker "
    "must first steal it from the party.",
    "hijacked training": "Send gradients that train the party's net to reveal its features, then "
    "decode them with known rows.",
}

SECTIONS = (
    Section(
        "A party that wants the labels",
        "The coordinator holds the labels. A party takes part in training and records everything "
        "that it receives.",
        (
            *(
                f"gradient {a}, {s} step{'s' if s == 'all' else ''}"
                for s in ("single", "all")
                for a in ("norm", "direction", "spectral")
            ),
            "model completion, own bottom",
            "model completion, received cues",
            "cue norm",
            "cue direction",
            "cue spectral",
        ),
        "Cues are made of the other parties' features. Where these are related to the label, "
        "a party that receives cues can predict labels better than from its own columns.",
    ),
    Section(
        "A party that wants the features of another party",
        "A party receives cues: for each of its rows, the mean embedding of the other parties. "
        "With two parties this is the embedding of the other party.",
        ("decoder, cues", "inversion of cues, guessed seed"),
        "A party that knows the full features of some shared rows can decode the features of the "
        "other rows from their cues.",
    ),
    Section(
        "A coordinator that follows the protocol, but is curious",
        "The coordinator receives the embedding of every row in every epoch and keeps them.",
        (
            "decoder, embeddings",
            "decoder, completed embeddings",
            "inversion, guessed seed",
            "inversion, stolen net",
        ),
        "Embeddings keep most of the information of the features. A coordinator that knows the "
        "full features of some rows can decode the others; with a party's net it needs no known "
        "row. Do not federate columns that the coordinator must not learn.",
    ),
    Section(
        "A coordinator that breaks the protocol",
        "The coordinator sends gradients of its own making instead of training.",
        ("hijacked training",),
        "A party that accepts gradients cannot tell them from honest ones. Train interactively "
        "with a coordinator that you trust, or upload embeddings instead.",
    ),
)


def meaning(finding: Finding) -> str:
    """Say in one sentence what a finding means."""
    own, value = finding.without_federation, finding.protected
    metric, verdict = finding.key.metric, finding.verdict
    if verdict == "blocked":
        return "The attacker learns nothing."
    if verdict == "no gain":
        return "The attacker learns no more than it knows without the federation."
    if metric == "AUC":
        return f"The attacker orders labels better than with its own data (AUC {own:.2f})."
    if metric == "R²":
        return f"About {value:.0%} of the variation of the numbers is recovered."
    if metric == "accuracy":
        return f"{value:.0%} of the categories are recovered; without embeddings {own:.0%}."
    return f"{value:.0%} of the rows are recovered exactly."
