"""A party withdraws rows while a coordinator process predicts."""

from pathlib import Path

import pandas as pd
import pytest

from tests.command_line import run_xvfl
from tests.service.predicting_federation import Predicting, copy_trained, write_party
from xvfl.matching import load_coordinator_alignment, load_party_alignment
from xvfl.model.run_dir import RunDir
from xvfl.service.head_store import HeadStore
from xvfl.service.uploads.upload_store import find_upload
from xvfl.system.event_log import read_log

pytestmark = pytest.mark.slow


def test_rows_are_withdrawn_from_a_coordinator_that_predicts(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy_trained(tmp_path_factory, tmp_path)
    main, ids = RunDir(tmp_path / "main"), pd.read_csv(tmp_path / "bank.csv")["customer"].tolist()
    session = load_coordinator_alignment(main / "alignment.json").matches["bank"].session.hex()
    store = find_upload(main, "bank", session)
    assert store is not None
    rows = load_party_alignment(tmp_path / "bank/alignment.json").match.rows.tolist()
    gone = [rows.index(row) for row in (0, 1)]
    secret = [store.views()[handle, 0].numpy().tobytes() for handle in gone]
    (tmp_path / "leaving.txt").write_text("\n".join(ids[:2]))
    with Predicting(tmp_path).start() as federation:
        write_party(tmp_path, "bank", federation.listen)
        bank = tmp_path / "bank.toml"
        done = run_xvfl("withdraw", bank, "--ids", tmp_path / "leaving.txt")
        assert done.code == 0 and "deleted 2 rows" in done.out and not done.err, done
        assert HeadStore(main).current.manifest()["run"] in done.out
        federation.event("main", "withdrawn", party="bank", rows=2)
        assert store.changed and not store.row_status()[gone].any()
        for path in main.path.rglob("*"):
            data = path.read_bytes() if path.is_file() else b""
            assert not any(each in data for each in secret), path
        done = run_xvfl("withdraw", bank, "--all")
        assert done.code == 0 and find_upload(main, "bank", session) is None
        assert not (main / "uploads/bank/1").exists()
        # The head stays in use.
        assert federation.running["coordinator"].poll() is None
    assert len(list((tmp_path / "bank/receipts").iterdir())) == 2
    assert not {"withdrawn.json", "withdrawn_ids.json"} & set(_files_of_others(tmp_path / "bank"))


def _files_of_others(folder: Path) -> list[str]:
    """The files that the commands took for those of other programs."""
    events = [each for each in read_log(folder) if each["event"] == "state_dir_shared"]
    return [name for each in events for name in each["files"]]
