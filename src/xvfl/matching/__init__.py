"""Private id matching: both sides find the labeled rows that a party holds, and nothing else.

Private set intersection by elliptic-curve Diffie–Hellman over ristretto255: the oblivious
pseudo-random function 2HashDH (Jarecki and Liu, 2009; RFC 9497), once in each direction, with one
scalar for each role. In the first half the coordinator finds its matches, in the second half the
party finds its own. This is version 2; version 1 had no second half.

Notation: X the coordinator's labeled ids, Y the party's ids, both normalized by the same named
rule; H(id) = SHA-512 of the id, mapped to the group; T(id, p) = the first 16 bytes of SHA-512 of a
point p and the id; H' and T' the same for the second half. All hashes have a prefix of the half,
the session id and the rule. a, b, c, d are secret scalars, sampled anew for every session.

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
WANT_BLIND                                      y in another random order
            <---------------------------------  PARTY_BLIND: c·H'(y)
PARTY_      d·c·H'(y), in the order received
EVALUATED   <---------------------------------  RECEIVED
COORDINATOR T'(x, d·H'(x)), x in another        d·H'(y) = c⁻¹·d·c·H'(y); y is in X if and only if
_TAGS       random order                        T'(y, d·H'(y)) is a tag
            <---------------------------------  RECEIVED
MATCHED     the positions in TAGS of the ids    rejects the session unless it found each of these
            in X, in random order               rows itself
            <---------------------------------  DONE: the number received

A *handle* is a position in the MATCHED list: 0, 1, 2, … The coordinator stores row → handle, the
party handle → row. All later messages refer to rows by handle only. Lists are sent in numbered
parts, so that a message stays below 1 MiB. Only the coordinator sends requests, so it requests the
party's points (WANT_BLIND) and sends the second half as requests.

What each side learns: the coordinator learns which of its ids the party holds, and |Y|; the party
learns which of its ids are labeled, and |X|. The sizes are revealed. Everything else stays hidden:
without the scalar, blinded points and tags are indistinguishable from random (decisional
Diffie–Hellman, SHA-512 as a random oracle). The orders are random, so positions and handles do not
reveal either side's order of rows. Labels are not part of the protocol.

A dishonest coordinator cannot claim a row whose id it does not know. The party accepts row y only
if T'(y, c⁻¹·e) is in COORDINATOR_TAGS, where e is the reply to the point of y. A tag is a hash of
the id itself: whoever computes it must put y into the hash. A tag that is not computed this way is
equal by chance only, with probability |X|·|Y|·2⁻¹²⁸ in a session. Nor can the coordinator obtain
the tag from a party: a party sends tags of the first half only, and these have another prefix, so
neither a party's own tags nor those of a second party match. By the same argument a party cannot
make the coordinator match an id that the party does not know.

Both sides end the session at a point or tag that they sent themselves (an echo) or received before,
at the neutral element and invalid points, at a wrong count, and at a message that is out of order
or has another session id, which is derived from both nonces. The party's points are sent after
BLIND is complete, so the party never multiplies its own points.

What remains for a side that deviates:
- It can submit ids that it guesses, and learn whether the other side has them: no protocol of this
  kind prevents this. Each side limits the other's number of ids (`max_ids`) and logs the sizes. The
  coordinator learns its matches first and can end the session then; `xvfl.service` limits the
  number of sessions. Guesses cannot be tested after the session, because no scalar is stored.
- It can leave rows out, which harms training. The party logs how many rows it found itself.
- It can use different ids in the two halves, which has the effect of the two points above.
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
