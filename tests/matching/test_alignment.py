"""What each side keeps, and which tables it refuses later."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.matching.session_helpers import RULE, run_matching
from xvfl.errors import InputError, MatchingError, RunError, XVFLError
from xvfl.matching import (
    CoordinatorAlignment,
    CoordinatorSession,
    PartyAlignment,
    PartyMatch,
    PartySession,
    SessionResponder,
    TableFingerprint,
    load_coordinator_alignment,
    load_party_alignment,
)

LABELED = ["Wolf", "Bo", "Yuki"]
IDS = ["yuki", "ivan", "wolf", "zoe"]
COLUMNS = ["age", "job"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    found, kept, _ = run_matching(LABELED, IDS)
    ours, theirs = tmp_path / "a" / "coordinator.json", tmp_path / "b" / "party.json"
    mark = TableFingerprint.of(["churned"], LABELED)
    CoordinatorAlignment({"shop": found}, RULE, mark).save(ours)
    PartyAlignment(kept, RULE, TableFingerprint.of(COLUMNS, IDS)).save(theirs)
    return ours, theirs


def test_both_halves_come_back_as_they_were(files: tuple[Path, Path]) -> None:
    ours, theirs = load_coordinator_alignment(files[0]), load_party_alignment(files[1])
    handles = ours.matches["shop"].handles
    assert handles[1] == -1
    assert theirs.match.rows[handles[0]] == IDS.index("wolf")
    assert theirs.match.rows[handles[2]] == IDS.index("yuki")
    assert ours.matches["shop"].session == theirs.match.session
    assert (ours.rule, ours.matches["shop"].party_ids) == (RULE, 4)
    assert (theirs.rule, theirs.match.labeled_ids) == (RULE, 3)


def test_files_are_their_owners_alone_and_hold_no_id(files: tuple[Path, Path]) -> None:
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600
        text = path.read_text().lower()
        assert not any(each.lower() in text for each in ["wolf", "ivan", "zoe"])
    first, second = (TableFingerprint.of(COLUMNS, IDS) for _ in range(2))
    assert first.ids != second.ids, "the same ids give another digest in another file"


@pytest.mark.parametrize(
    ("columns", "ids", "words"),
    [
        (["age"], IDS, "missing columns: 'job'"),
        (["age", "job", "x", "y"], IDS, "new columns: 'x', 'y'"),
        ([*COLUMNS, *(f"c{i}" for i in range(9))], IDS, "'c4' and 4 more"),
        (["age", "work"], IDS, "missing columns: 'job', new columns: 'work'"),
        (COLUMNS, IDS[:3], "3 rows instead of 4"),
        (COLUMNS, [*IDS, "una"], "5 rows instead of 4"),
        (COLUMNS, IDS[::-1], "different ids, or a different order of ids"),
        (COLUMNS, ["yukiivan", "", "wolf", "zoe"], "different ids"),
    ],
)
def test_a_table_that_changed_is_refused(
    files: tuple[Path, Path], columns: list[str], ids: list[str], words: str
) -> None:
    mark = load_party_alignment(files[1]).table
    mark.check(["job", "age"], IDS, "bank")
    with pytest.raises(InputError, match=f"bank: changed since .*{words}.*xvfl align"):
        mark.check(columns, ids, "bank")


def test_a_file_that_is_missing_damaged_or_the_other_sides_says_so(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="no such file; `xvfl align` creates it"):
        load_party_alignment(tmp_path / "none.json")
    with pytest.raises(RunError, match="not a party's alignment"):
        load_party_alignment(files[0])
    with pytest.raises(RunError, match="not a coordinator's alignment"):
        load_coordinator_alignment(files[1])
    said = json.loads(files[1].read_text())
    for change in ({"rows": [0, 0]}, {"rows": [9]}, {"rows": "x"}, {"table": {}}, {"format": 1}):
        files[1].write_text(json.dumps(said | change))
        with pytest.raises(RunError, match="cannot be used .* match again"):
            load_party_alignment(files[1])
    files[0].write_text(files[0].read_text()[:-20])
    with pytest.raises(RunError, match="cannot be used"):
        load_coordinator_alignment(files[0])


def test_a_failed_write_leaves_the_old_file(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    before = files[1].read_bytes()
    mark = TableFingerprint.of(COLUMNS, IDS)
    monkeypatch.setattr("xvfl.system.files.os.replace", full)
    with pytest.raises(RunError, match="No space left on device.*unchanged"):
        PartyAlignment(PartyMatch(np.array([0]), 1, b"x"), RULE, mark).save(files[1])
    assert files[1].read_bytes() == before and list(files[1].parent.iterdir()) == [files[1]]


def test_a_responder_answers_one_session_after_the_other() -> None:
    kept: list[PartyMatch] = []
    responder = SessionResponder(IDS, RULE, kept.append, n_threads=1)
    for _ in range(2):
        CoordinatorSession(LABELED, RULE, n_threads=1).match(responder.answer)
    assert [sorted(each.rows) for each in kept] == [[0, 2], [0, 2]]
    assert kept[0].session != kept[1].session
    with pytest.raises(MatchingError, match="expected HELLO first, got WANT_TAGS"):
        responder.answer(b"XM\3\5" + bytes(20))


def test_a_session_given_up_makes_room_for_the_next() -> None:
    kept: list[PartyMatch] = []
    responder = SessionResponder(IDS, RULE, kept.append, n_threads=1)

    def breaks(request: bytes) -> bytes:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        CoordinatorSession(LABELED, RULE).match(breaks)

    def breaks_later(request: bytes) -> bytes:
        reply = responder.answer(request)
        if request[3] == 3:
            raise ConnectionError
        return reply

    with pytest.raises(ConnectionError):
        CoordinatorSession(LABELED, RULE).match(breaks_later)
    assert kept == []
    CoordinatorSession(LABELED, RULE).match(responder.answer)
    assert len(kept) == 1


def test_a_responder_checks_its_ids_when_it_starts() -> None:
    with pytest.raises(XVFLError, match="'a' and 'A'"):
        SessionResponder(["a", "A"], RULE, lambda match: None)
    assert PartySession(["a"], RULE).match is None
