"""What each attack on an upload tries, in words for readers who are not programmers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """One attacker; `attacks` are prefixes of the names of its attacks."""

    title: str
    aim: str
    attacks: tuple[str, ...]


SECTIONS = (
    Section(
        "A coordinator that knows no row",
        "The coordinator stores the embedding of every matched row and of its masked copies. It "
        "searches for directions in which embeddings vary like a column.",
        ("ICA", "PCA", "differences"),
    ),
    Section(
        "A coordinator that knows some rows",
        "It knows all columns of a few rows, learns to decode embeddings from them, and decodes "
        "the other rows.",
        ("decoder",),
    ),
    Section(
        "A coordinator that colludes with a party",
        "The party holds half of the same columns. It tells the coordinator its values.",
        ("collusion",),
    ),
    Section(
        "Two versions of the encoder",
        "The coordinator keeps the uploads of two versions and attacks both together.",
        ("two versions",),
    ),
    Section(
        "An attacker that has stolen the encoder",
        "It has the weights of the party's nets, and searches for the rows that have the stored "
        "embeddings.",
        ("stolen encoder",),
    ),
    Section(
        "Was a row used to train the encoder?",
        "The attacker tries to distinguish the rows that the encoder learned from and other rows.",
        ("membership",),
    ),
    Section(
        "A party that wants the labels",
        "In training a party receives control messages and the list of held-out rows, which the "
        "coordinator draws without looking at labels.",
        ("labels",),
    ),
)

TRIED = {
    "ICA": "Independent components of the plain embeddings.",
    "PCA": "Principal components of the plain embeddings.",
    "differences, ICA": "Independent components of the differences between a row and its masked "
    "copies.",
    "differences, clusters": "Recurring directions of the shortest of these differences.",
    "decoder": "Learn from the known rows to decode the others.",
    "collusion, shared columns": "The peer holds half of the rows; decode the shared columns of "
    "the other rows.",
    "collusion, other columns, 0 rows": "Remove what the shared columns explain; find independent "
    "components of the rest.",
    "collusion, other columns, without the upload": "The same decoder without the upload.",
    "collusion, other columns": "Decode the other columns from embeddings and shared columns, with "
    "known rows.",
    "two versions": "Embeddings of two versions side by side.",
    "stolen encoder": "Search for the rows by gradient descent.",
    "membership, embeddings": "Length, distances and neighbors of embeddings.",
    "membership, classifier": "A classifier that knows half of the rows.",
    "membership, stolen decoder": "How well the party's own decoder reconstructs a row.",
    "labels": "Sort rows by whether they are held out.",
}
"""What was tried, by prefix of an attack's name; the longest matching prefix counts."""


def tried(attack: str) -> str:
    """Say what an attack does."""
    return TRIED[max((each for each in TRIED if attack.startswith(each)), key=len)]
