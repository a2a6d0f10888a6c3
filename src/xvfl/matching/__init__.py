"""Private id matching: find the labeled rows that a party holds, and reveal nothing else.

Private set intersection by elliptic-curve Diffie–Hellman over ristretto255: the oblivious
pseudo-random function 2HashDH (Jarecki and Liu, 2009; RFC 9497), with one blinding scalar for each
session.

Notation: X the coordinator's labeled ids, Y the party's ids, both normalized by the same named
rule; H(id) = SHA-512 of the rule and the id, mapped to the group; T(id, p) = the first 16 bytes of
SHA-512 of a point p and the id; a, b secret scalars, sampled anew for every session.

coordinator                                     party
----------- --------------------------------->  -------------------------------------------------
HELLO       nonce, rule, |X|                    rejects another rule, or more ids than it allows
            <---------------------------------  WELCOME: nonce, |Y|
BLIND       a·H(x), x in random order
            <---------------------------------  EVALUATED: b·a·H(x), in the order received
WANT                                            y in random order
            <---------------------------------  TAGS: T(y, b·H(y))
            b·H(x) = a⁻¹·b·a·H(x); x is in Y
            if and only if T(x, b·H(x)) is a
            tag
MATCHED     the positions of the tags that
            are in X, in random order
            <---------------------------------  DONE: the number received

A *handle* is a position in the MATCHED list: 0, 1, 2, … The coordinator stores row → handle, the
party handle → row. All later messages refer to rows by handle only. BLIND, WANT and MATCHED are
sent in numbered parts, so that a message stays below 1 MiB.

What each side learns: the coordinator learns which of its ids the party holds, and |Y|; the party
learns which of its ids are labeled, and |X|. The sizes are revealed. Everything else stays hidden:
without the scalar, blinded points and tags are indistinguishable from random (decisional
Diffie–Hellman, SHA-512 as a random oracle). The orders are random, so positions and handles do not
reveal either side's order of rows. Labels are not part of the protocol.

Security model: semi-honest. Both sides are assumed to follow the protocol, and may analyze
everything they receive. A side that deviates can
- submit ids that it guesses, and learn whether the other side has them: no protocol of this kind
  prevents this, so each side limits the other's number of ids (`max_ids`), and logs the sizes;
- claim rows that it did not match: the coordinator chooses the positions in MATCHED, so it can
  claim rows of the party that match none of its ids, and request their embeddings in training;
- leave rows out, which harms training.
Guesses cannot be tested after the session, because the scalar is not stored.
Every message carries a session id derived from both nonces, so messages of another session are
rejected. A part that is out of order, repeated, of the wrong length, or has an invalid point ends
the session.
"""

from xvfl.matching.alignment import (
    CoordinatorAlignment,
    PartyAlignment,
    TableFingerprint,
    load_coordinator_alignment,
    load_party_alignment,
)
from xvfl.matching.coordinator_session import CoordinatorMatch, CoordinatorSession
from xvfl.matching.normalize import RULES, normalize_ids
from xvfl.matching.party_session import PartyMatch, PartySession
from xvfl.matching.responder import SessionResponder

__all__ = [
    "RULES",
    "CoordinatorAlignment",
    "CoordinatorMatch",
    "CoordinatorSession",
    "PartyAlignment",
    "PartyMatch",
    "PartySession",
    "SessionResponder",
    "TableFingerprint",
    "load_coordinator_alignment",
    "load_party_alignment",
    "normalize_ids",
]
