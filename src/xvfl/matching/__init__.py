"""Private id matching: both sides learn which rows of the label table a party holds.

Private set intersection by elliptic-curve Diffie–Hellman over ristretto255: the oblivious
pseudo-random function 2HashDH (Jarecki and Liu, 2009; RFC 9497), with one scalar for each side.
This is version 3; version 2 ran the function in both directions.

Notation: X the ids of the label table, Y the party's ids, both normalized by the same named rule;
H(id) = SHA-512 of the id, mapped to the group; T(id, p) and P(id, p) = the first and the second 16
bytes of SHA-512 of a point p and the id, the tag and the proof of an id. All hashes have a prefix
of the session id and the rule. a and b are secret scalars, sampled anew for every session.

coordinator                                     party
----------- --------------------------------->  -------------------------------------------------
HELLO       nonce, rule, |X|                    rejects another rule, or more ids than it allows
            <---------------------------------  WELCOME: nonce, |Y|
BLIND       a·H(x), x in random order
            <---------------------------------  EVALUATED: b·a·H(x), in the order received
WANT_TAGS                                       y in random order
            <---------------------------------  TAGS: T(y, b·H(y))
            b·H(x) = a⁻¹·b·a·H(x); x is in Y
            if and only if T(x, b·H(x)) is a
            tag
MATCHED     for each id in X, in random order:  rejects the session unless each proof is
            the position of its tag in TAGS,    P(y, b·H(y)) of the id y at this position
            and P(x, b·H(x))
            <---------------------------------  DONE: the number received

A *handle* is a position in the MATCHED list: 0, 1, 2, … The coordinator stores row → handle, the
party handle → row. All later messages refer to rows by handle only. Lists are sent in numbered
parts, so that a message stays below 1 MiB.

What each side learns: the coordinator learns which of its ids the party holds, and |Y|; the party
learns which of its ids are in X, as far as the coordinator lists them, and |X|. The sizes are
revealed. Everything else stays hidden: without the scalar, blinded points and tags are
indistinguishable from random (decisional Diffie–Hellman, SHA-512 as a random oracle). The orders
are random, so positions and handles do not reveal either side's order of rows. Labels are not part
of the protocol.

A dishonest coordinator cannot claim a row whose id it does not know. The party accepts row y only
with P(y, b·H(y)), a hash of the id itself: whoever computes it must put y and b·H(y) into the hash,
and gets b·H(y) only by sending a multiple of H(y) as one of its |X| points. Otherwise a proof is
right by chance only, with probability 2⁻¹²⁸. Tags are another part of the hash and are no proofs;
those of another session or party were made with another scalar and prefix. A party cannot make
the coordinator match an id that the party does not know: a tag is a hash of the id as well.

Both sides end the session at a point or tag that they sent themselves (an echo) or received before,
at the neutral element and invalid points, at a wrong count, and at a message that is out of order
or has another session id, which is derived from both nonces.

What remains for a side that deviates:
- It can submit ids that it guesses, and learn whether the other side has them: no protocol of this
  kind prevents this. Each side limits the other's number of ids (`max_ids`) and logs the sizes. The
  coordinator learns its matches first and can end the session then; `xvfl.service` limits the
  number of sessions. Guesses cannot be tested after the session, because no scalar is stored.
- The coordinator can leave rows out of MATCHED: they are not used. In version 2 the party found its
  rows itself, which did not prevent this: the coordinator chose the ids that it could find.
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
from xvfl.matching.party_session import PartyMatch, PartySession, UnmatchedRowsError
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
    "UnmatchedRowsError",
    "load_coordinator_alignment",
    "load_party_alignment",
    "normalize_ids",
]
