"""The count of a party's batches across a restart of the coordinator."""

import json

from tests.federation.elastic_helpers import make_roster, train_config
from xvfl.federation.membership import MAX_CONTRIBUTIONS, Member
from xvfl.federation.remote_party import RemoteParty
from xvfl.service.outcome import participation, restore_participation, save_participation


def test_it_is_saved_and_restored() -> None:
    roster, trainer, lines, _, _ = make_roster(train_config("adamw", epochs=1))
    steps = trainer.run(lambda: 0.0)
    for _ in range(6):
        next(steps)
    lines[1].silent = "before"
    next(steps)
    saved = json.loads(json.dumps(save_participation(roster)))
    roster.flush()
    again, *_ = make_roster(train_config("adamw", epochs=1))
    restore_participation(again, saved)
    assert participation(again) == participation(roster)
    again.members[1].resume_at(3)
    assert participation(again)["p1"]["batches"] == 3


def test_sums_of_version_0_3_0_are_restored() -> None:
    roster, *_ = make_roster(train_config("adamw", epochs=1))
    saved = {name: {"batches": 4, "of_batches": 5, "rows": 60} for name in roster.names}
    restore_participation(roster, saved)
    assert participation(roster) == saved


def test_old_contributions_are_joined() -> None:
    _, _, lines, _, _ = make_roster(train_config("adamw", epochs=1))
    member, total = Member(RemoteParty("a", lines[0])), 5 * MAX_CONTRIBUTIONS
    for number in range(1, total + 1):
        member.record_success(True, 2)
        member.record_update(number)
    member.party.last_update = total
    assert (member.batches, member.trained_rows) == (total, 2 * total)
    assert len(member.contributions) <= 2 * MAX_CONTRIBUTIONS
    member.resume_at(total - 10)
    assert member.batches == total - 10
