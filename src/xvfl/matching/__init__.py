"""Private id matching: which labelled rows a party holds, told to the two sides alone.

Set intersection by elliptic-curve Diffie–Hellman over ristretto255 (the 2HashDH oblivious
pseudo-random function of Jarecki and Liu, 2009, as in RFC 9497, with one blind a session).

Notation: X the coordinator's labelled ids, Y the party's ids, all normalised by one named rule;
H(id) = SHA-512 of the rule and the id, mapped to the group; T(id, p) = the first 16 bytes of
SHA-512 over a point p and the id; a, b secret scalars drawn afresh for every session.

coordinator                                     party
----------- --------------------------------->  -------------------------------------------------
HELLO       nonce, rule, |X|                    refuses another rule, or more ids than it allows
            <---------------------------------  WELCOME: nonce, |Y|
BLIND       a·H(x), x in a random order
            <---------------------------------  EVALUATED: b·a·H(x), in the order they came
WANT                                            y in a random order
            <---------------------------------  TAGS: T(y, b·H(y))
            b·H(x) = a⁻¹·b·a·H(x); x is in Y
            exactly if T(x, b·H(x)) is a tag
MATCHED     the places of the tags that are
            in X, in a random order
            <---------------------------------  DONE: how many it has taken

A *handle* is a place in the MATCHED list: 0, 1, 2, … The coordinator keeps row → handle, the party
handle → row, and both speak of rows by handle alone from then on. BLIND, WANT and MATCHED come in
encode_labels parts, so that a message stays below 1 MiB.

What each side learns: the coordinator, which of its ids the party holds, and |Y|; the party, which
of its ids are labelled, and |X|. The sizes are revealed. Everything else is hidden: blinded points
and tags look random to whoever lacks the scalar (decisional Diffie–Hellman, SHA-512 as a random
oracle); the orders are random, so neither side's order of rows shows in places or handles; labels
never enter. Both sides are trusted to follow the protocol but not to forget what they see
(semi-honest). A side that does not follow it can
- put in ids that it merely guesses, and learn whether the other side has those: no protocol of this
  kind prevents it, so a party caps |X| (`max_ids`), and both sides' sizes are logged;
- claim ids it does not hold or drop matches, which harms the training but tells it nothing;
- not search the other's ids after the session: without the scalar, which is never stored, guessing
  an id cannot be checked.
Messages carry a name of the session made of both nonces, so one of another session is refused; a
part out of order, repeated, of the wrong length, or with an invalid point ends the session.
"""

from xvfl.matching.alignment import (
    CoordinatorAlignment,
    PartyAlignment,
    TableMark,
    load_coordinator,
    load_party,
)
from xvfl.matching.coordinator_session import CoordinatorMatch, CoordinatorSession
from xvfl.matching.normalise import RULES, normalised
from xvfl.matching.party_session import PartyMatch, PartySession
from xvfl.matching.responder import Responder

__all__ = [
    "RULES",
    "CoordinatorAlignment",
    "CoordinatorMatch",
    "CoordinatorSession",
    "PartyAlignment",
    "PartyMatch",
    "PartySession",
    "Responder",
    "TableMark",
    "load_coordinator",
    "load_party",
    "normalised",
]
