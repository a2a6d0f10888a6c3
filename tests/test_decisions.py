"""The points the paper leaves open, one by one: each decision D1–D8 has tests that name it."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests import twin
from tests.options import resolved
from tests.problems import IMAGE, MIXED, NUMBERS, D, Problem, make_problem
from xvfl import maths, nets
from xvfl.config import COORDINATOR, NetConfig, TableOptions
from xvfl.data.encoder import TableEncoder
from xvfl.data.images import ImageEncoder, Images
from xvfl.dataset.in_memory import InMemoryDataset, prepare_in_memory
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.errors import DataWarning, RunError
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.xvfl import XVFL, XVFLWeights
from xvfl.model.cell_filler import sample_cells
from xvfl.model.model import Model
from xvfl.model.run_dir import MODEL, RunDir
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import Rows, choose_full_threshold, is_full

NAMES = ("bank", "shop", "web")
WEIGHTS = XVFLWeights(lambda1=0.7, lambda2=1.3)
OURS = replace(WEIGHTS, self_completion=0.8)


def frames(n: int = 40, gaps: float = 0.0) -> tuple[dict[str, Any], pd.Series]:
    """Draw three parties' tables of the same rows: two numbers and a category each."""
    rng = np.random.default_rng(0)
    index = pd.Index([f"r{i}" for i in range(n)], name="id")
    sources = {}
    for name in NAMES:
        table = pd.DataFrame(rng.random((n, 2)), index=index, columns=["u", "v"])
        table["kind"] = rng.choice(["red", "green", "blue"], n)
        table[["u", "v"]] = table[["u", "v"]].mask(rng.random((n, 2)) < gaps)
        sources[name] = table
    return sources, pd.Series(["no", "yes", "yes", "yes"] * (n // 4), index=index)


def prepared(
    sources: dict[str, Any], labels: pd.Series, full_threshold: float | None = None
) -> InMemoryDataset:
    """Prepare tables as the estimator does."""
    plan = PreparationPlan({}, Splits(0.1, 0.2, 0), full_threshold)
    return prepare_in_memory(sources, labels, plan)


def model_of(ready: InMemoryDataset) -> Model:
    """Build an untrained model."""
    options = resolved(NetConfig(embedding_dim=8, hidden_dim=16))
    return Model(
        ready.encoders,
        ready.full_threshold,
        ready.task,
        ready.prior(),
        options.net,
        options.loss,
        0,
    )


def terms_of(
    problem: Problem, parties: Sequence[int] | None = None, weights: XVFLWeights = WEIGHTS
) -> dict[str, Tensor]:
    """Run the package's loss, over some of the parties."""
    federation, rows = problem.federation(), problem.rows
    if parties is not None:
        federation, rows = federation.select_parties(parties), rows.select_parties(parties)
    return XVFL(problem.head, weights).loss(federation, rows)


def one_row(holding: str) -> tuple[Problem, list[twin.Party], twin.Row, list[Tensor]]:
    """Make a batch of one row of weight 1; with the parties as the twin sees them, and every E."""
    problem = make_problem([NUMBERS] * len(holding), [holding])
    problem = replace(problem, rows=replace(problem.rows, weight=torch.ones(1).double()))
    parties, (row,) = problem.twin_parties(), problem.twin_rows()
    E = [twin.embed(p, x, o) for p, x, o in zip(parties, row.x, row.o, strict=True)]
    return problem, parties, row, E


def completed(party: twin.Party, row: twin.Row, i: int, cue: Tensor) -> Tensor:
    """Ẽ_i from a given cue, what was observed kept."""
    return twin.embed_completed(party, row.x[i], row.o[i], party.xcom(cue))


def close(actual: Tensor, expected: Tensor) -> None:
    """Compare to 1e-12."""
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


# D1: a single full party's own decision counts once.


def test_D1_one_full_party_is_counted_once() -> None:
    problem, parties, row, E = one_row("P-F")
    E_ = [completed(parties[i], row, i, E[2]) for i in (0, 1)]
    once = twin.cross_entropy(problem.head(E[2]), row.y)
    filled = twin.cross_entropy(problem.head((E_[0] + E_[1] + E[2]) / 3), row.y)
    close(terms_of(problem)["decision"], once + filled)


def test_D1_two_full_parties_also_decide_together() -> None:
    problem, parties, row, E = one_row("FPF")
    joint = (E[0] + E[2]) / 2
    E_ = completed(parties[1], row, 1, joint)
    seen = [E[0], E[2], joint, (E[0] + E_ + E[2]) / 3]
    expected = twin.total([twin.cross_entropy(problem.head(each), row.y) for each in seen])
    close(terms_of(problem)["decision"], expected)


@pytest.mark.parametrize("holding", ["FF", "FP", "PF", "F-", "-F"])
def test_D1_two_parties_equal_the_two_client_equations(holding: str) -> None:
    problem, (a, b), row, _ = one_row(holding)
    by_hand = twin.two_clients(a, b, problem.head, row, WEIGHTS.lambda1, WEIGHTS.lambda2)
    for actual, expected in zip(terms_of(problem).values(), by_hand, strict=True):
        close(actual, expected)


# D2: rows with no full party.


def test_D2_who_saw_anything_gives_the_cues_and_the_filled_term_alone_is_active() -> None:
    problem, parties, row, E = one_row("PP-")
    cues = [E[1], E[0], (E[0] + E[1]) / 2]
    E_ = [completed(parties[i], row, i, cues[i]) for i in range(3)]
    terms = terms_of(problem)
    close(terms["decision"], twin.cross_entropy(problem.head((E_[0] + E_[1] + E_[2]) / 3), row.y))
    assert terms["dsalign1"] == 0 and terms["dsalign2"] == 0


def test_D2_a_party_without_a_cue_keeps_its_neutral_filled_embedding() -> None:
    problem, parties, row, E = one_row("-PE")
    E_ = [completed(parties[i], row, i, E[1]) for i in (0, 2)]
    filled = (E_[0] + E[1] + E_[1]) / 3
    close(terms_of(problem)["decision"], twin.cross_entropy(problem.head(filled), row.y))


def test_D2_a_partial_party_gives_no_cue_where_another_is_full() -> None:
    problem, parties, row, E = one_row("PPF")
    E_ = [completed(parties[i], row, i, E[2]) for i in (0, 1)]
    seen = [E[2], (E_[0] + E_[1] + E[2]) / 3]
    expected = twin.total([twin.cross_entropy(problem.head(each), row.y) for each in seen])
    close(terms_of(problem)["decision"], expected)


def test_D2_rows_observed_nowhere_are_counted_and_left_out_of_training() -> None:
    sources, labels = frames()
    for name in NAMES:
        sources[name].loc[["r3", "r17", "r18"]] = np.nan
    sources["shop"] = sources["shop"].drop(index="r17")
    with pytest.warns(DataWarning, match=r"^3 rows have no observed feature at any party"):
        ready = prepared(sources, labels)
    used = [ready.ids[i] for part in (ready.train, ready.validation, ready.test) for i in part]
    assert sorted(used) == sorted(set(labels.index) - {"r3", "r17", "r18"})


def test_D2_labeled_ids_that_no_party_holds_are_counted_and_dropped() -> None:
    sources, labels = frames()
    more = pd.concat([labels, pd.Series(["yes", "no"], index=["x1", "x2"])])
    with pytest.warns(DataWarning, match=r"^2 of 42 labeled ids are held by no party"):
        ready = prepared(sources, more)
    assert ready.ids == list(labels.index)


def test_D2_rows_observed_nowhere_get_the_class_prior_flagged() -> None:
    sources, labels = frames()
    model = model_of(prepared(sources, labels))
    asked = {name: table.iloc[:3].copy() for name, table in sources.items()}
    for table in asked.values():
        table.loc["r1"] = np.nan
    said = [model.predict(asked, "collaborative")]
    said += [model.predict(asked, mode, "shop") for mode in ("local", "assisted")]
    for each in said:
        np.testing.assert_allclose(each.values[1], model.prior)
        assert each.mode[1] == "prior" and each.parties[1] == "" and each.completed[1] == 0
        assert "not observed by any party: class prior" in each.notes[1]
        assert each.mode[0] == each.mode[2] != "prior"
        assert each.notes[0] == each.notes[2]
        assert each.notes[0] in ("", "no gap: decided alone")
        assert not np.allclose(each.values[0], model.prior)


# D3: missing is per raw feature, and never a zero.


def test_D3_a_missing_category_or_date_masks_all_its_encoded_columns() -> None:
    days = pd.date_range("2024-01-01", periods=4)
    table = pd.DataFrame({"job": ["a", "b", "c", None], "day": days, "n": [1.5, 2, 3, 4]})
    table.index = pd.Index(list("wxyz"), name="id")
    table.loc["y", "day"] = pd.NaT
    encoder = TableEncoder.fit(table, TableOptions(), "bank")
    encoded = encoder.encode(table)
    layout = encoder.layout
    net = PartyNet(layout, nets.bottom(layout, D, 6, 1), nets.completer(layout, D, 6))
    spread = net.spread(torch.from_numpy(encoded.observed))
    assert [feature.width for feature in layout.features] == [3, 5, 1]
    assert spread[2].tolist() == [True] * 3 + [False] * 5 + [True]
    assert spread[3].tolist() == [False] * 3 + [True] * 6
    assert spread[:2].all()


def test_D3_a_missing_pixel_masks_all_its_channels() -> None:
    pixels = np.random.default_rng(0).random((2, 3, 4, 5))
    pixels[0, 1, 2, 3] = np.nan
    encoder = ImageEncoder.fit(pixels, "lab")
    observed = torch.from_numpy(encoder.encode(pixels, ["a", "b"]).observed)
    layout = encoder.layout
    net = PartyNet(layout, nets.bottom(layout, D, 6, 1), nets.completer(layout, D, 6))
    spread = net.spread(observed).expand(2, 3, 4, 5)
    assert (~spread).nonzero().tolist() == [[0, channel, 2, 3] for channel in range(3)]


@pytest.mark.parametrize("layout", [NUMBERS, MIXED, IMAGE], ids=["numbers", "mixed", "image"])
def test_D3_a_gap_is_not_a_real_zero_and_hides_what_stands_there(layout: Layout) -> None:
    problem = make_problem([layout, NUMBERS], ["FF"])
    net, table = problem.parties[0], problem.tables[0].take(torch.zeros(1, dtype=torch.long))
    x, given = net.encode(table), table.observed
    for feature in range(layout.raw):
        gap = given.clone()
        gap[0, feature] = False
        zero = torch.where(net.spread(gap), x, torch.zeros_like(x))
        assert not torch.allclose(net.embed(zero, given), net.embed(zero, gap), atol=1e-6)
        assert torch.equal(net.embed(zero, gap), net.embed(x, gap))


@pytest.mark.parametrize("layout", [NUMBERS, MIXED, IMAGE], ids=["numbers", "mixed", "image"])
@pytest.mark.parametrize("size", [0.0, 1.0, 30.0])
def test_D3_completions_stay_in_each_features_range(layout: Layout, size: float) -> None:
    net = make_problem([layout, NUMBERS], ["FF"], seed=4).parties[0]
    cue = size * torch.randn(50, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    made = net.completer(cue).detach()
    if layout.image is not None:
        assert ((made > 0) & (made < 1)).all()
        return
    at = 0
    for feature in layout.features:
        part = made[:, at : at + feature.width]
        at += feature.width
        if feature.kind != "hashed":
            assert ((part > 0) & (part < 1)).all()
        if feature.kind == "category":
            close(part.sum(1), torch.ones(50, dtype=torch.float64))
    assert at == made.shape[1]


# D4: no party predicts alone without the head.


def test_D4_a_folder_without_the_head_cannot_predict(tmp_path: Path) -> None:
    sources, labels = frames()
    folder = RunDir(tmp_path / "model")
    model_of(prepared(sources, labels)).save(folder)
    alone = Model.load(folder).predict({"shop": sources["shop"]}, "local", "shop")
    assert alone.values.shape == (40, 2)
    tensors, about = folder.load_tensors(MODEL)
    kept = {k: v for k, v in tensors.items() if not k.startswith(f"{COORDINATOR}/")}
    assert 0 < len(kept) < len(tensors)
    folder.save_tensors(MODEL, kept, about)
    with pytest.raises(RunError, match="weights do not fit"):
        Model.load(folder)


# D5: any non-empty subset of parties gives a valid head input.


@pytest.mark.parametrize("who", [s for r in (1, 2, 3) for s in itertools.combinations(NAMES, r)])
def test_D5_any_subset_of_parties_predicts_together(who: tuple[str, ...]) -> None:
    sources, labels = frames()
    model = model_of(prepared(sources, labels, full_threshold=1.0))
    said = model.predict({name: sources[name] for name in who}, "collaborative")
    assert said.ids == list(labels.index) and set(said.mode) == {"collaborative"}
    assert set(said.parties) == {"+".join(who)} and not any(said.notes)
    embedded = []
    for name in who:
        encoded = model.encoders[name].encode(sources[name])
        net, given = model.parties[name], torch.from_numpy(encoded.observed)
        embedded.append(net.embed(torch.from_numpy(encoded.values), given))
    head = model.method.heads
    expected = torch.softmax(head(torch.stack(embedded).mean(0)).double(), 1)
    np.testing.assert_allclose(said.values, expected.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("who", [s for r in (1, 2, 3) for s in itertools.combinations(NAMES, r)])
def test_D5_any_subset_of_parties_predicts_rows_with_gaps(who: tuple[str, ...]) -> None:
    sources, labels = frames(gaps=0.5)
    model = model_of(prepared(sources, labels, full_threshold=1.0))
    given = {name: sources[name].iloc[i : i + 20] for i, name in enumerate(who)}
    said = model.predict(given, "collaborative")
    assert len(said.ids) == 19 + len(who)
    assert np.isfinite(said.values).all() and (said.values > 0).all()
    np.testing.assert_allclose(said.values.sum(1), 1)


# D6: a row counts as full when enough of it is there.


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=12))
def test_D6_full_threshold_is_the_largest_share_of_half_of_the_rows(
    rows: list[list[bool]],
) -> None:
    observed = torch.tensor(rows)
    shares = [sum(row) / 4 for row in rows]
    reached = [s for s in (0, 0.25, 0.5, 0.75, 1) if sum(x >= s for x in shares) >= len(rows) / 2]
    assert choose_full_threshold(observed) == max(reached)
    full = is_full(observed, choose_full_threshold(observed))
    expected = [share >= max(reached) and any(r) for share, r in zip(shares, rows, strict=True)]
    assert full.tolist() == expected
    assert is_full(observed, 1.0).tolist() == [all(row) for row in rows]


@given(st.integers(1, 400), st.data())
def test_D6_shares_survive_single_precision(raw: int, data: st.DataObject) -> None:
    there = data.draw(st.integers(1, raw))
    observed = (torch.arange(raw) < there).unsqueeze(0)
    assert is_full(observed, there / raw).tolist() == [True]
    assert is_full(observed, choose_full_threshold(observed)).tolist() == [True]
    if there < raw:
        assert is_full(observed, (there + 1) / raw).tolist() == [False]


def test_D6_the_default_is_taken_from_each_partys_own_training_rows() -> None:
    sources, labels = frames(gaps=0.6)
    ready = prepared(sources, labels)
    for at, name in enumerate(NAMES):
        training = {ready.ids[i] for i in ready.train}
        shares = sources[name].notna().mean(axis=1)
        mine = shares[[each for each in shares.index if each in training]]
        best = max(s for s in mine if (mine >= s).mean() >= 0.5)
        assert ready.full_threshold[name] == pytest.approx(best)
        assert ready.rows.full[:, at].tolist() == (shares >= best - 1e-6).tolist()
    paper = prepared(sources, labels, full_threshold=1.0)
    whole = np.stack([sources[name].notna().all(axis=1) for name in NAMES], 1)
    assert paper.rows.full.tolist() == whole.tolist()
    assert set(paper.full_threshold.values()) == {1.0}


@pytest.mark.parametrize("layout", [NUMBERS, MIXED, IMAGE], ids=["numbers", "mixed", "image"])
def test_D6_a_full_rows_gap_is_never_a_target(layout: Layout) -> None:
    problem = make_problem([layout, NUMBERS], ["GF", "GG"], seed=6)
    table = problem.tables[0]
    objectives = []
    for offset in (0.0, 0.6):
        hidden = ~problem.parties[0].spread(table.observed)[:, : table.values.shape[1]]
        values = table.values + offset * hidden
        poked = replace(problem, tables=[replace(table, values=values), problem.tables[1]])
        federation = poked.federation(reconstruction=1.0)
        XVFL(problem.head, XVFLWeights(1.0, 1.0, 1.0)).loss(federation, problem.rows)
        objective = federation.workers[0].objective
        assert objective is not None and objective > 0
        objectives.append(objective.detach())
        worker = federation.workers[0]
        made = torch.rand(2, *worker._x.shape[1:], dtype=torch.float64, requires_grad=True)
        known = worker._observed
        loss = worker._reconstruction_loss(made, worker._x.detach(), known, known)
        (gradient,) = torch.autograd.grad(loss, made)
        there = worker.net.spread(worker._observed).expand_as(made)
        assert torch.equal(gradient != 0, there)
    assert objectives[0] == objectives[1]


def test_D6_complete_fills_the_gaps_of_full_rows() -> None:
    sources, labels = frames(gaps=0.2)
    sources["bank"].loc["r5", "kind"] = None
    ready = prepared(sources, labels, full_threshold=0.3)
    assert ready.rows.full.all()
    gaps = sources["bank"].isna()
    assert gaps.any(axis=None) and gaps.loc["r5", "kind"]
    model = model_of(ready)
    rows = ready.training_rows(torch.device("cpu"))
    model.cells = sample_cells(ready.encoders, ready.tables, rows, rows, seed=0)()
    filled = model.complete(sources, "bank")
    assert isinstance(filled, pd.DataFrame)
    assert not filled.isna().any(axis=None)
    assert list(filled.columns) == list(sources["bank"].columns)
    for column in filled:
        there = ~gaps[column]
        assert (filled[column][there] == sources["bank"][column][there]).all()
    assert filled.loc["r5", "kind"] in {"red", "green", "blue"}
    for column in ("u", "v"):
        assert filled[column].between(sources["bank"][column].min(), 1).all()


def test_D6_complete_leaves_observed_pixels_as_they_were() -> None:
    sources, labels = frames()
    rng = np.random.default_rng(1)
    pixels = rng.normal(size=(40, 4, 4))
    ids = list(labels.index)
    sources["shop"] = Images(pixels, ids)
    model = model_of(prepared(sources, labels))
    asked = pixels.copy()
    asked[0, 0, 0], asked[1, 2, 2] = 9.0, np.nan
    filled = model.complete({**sources, "shop": Images(asked, ids)}, "shop")
    assert isinstance(filled, Images) and not np.isnan(filled.pixels).any()
    there = ~np.isnan(asked)
    np.testing.assert_allclose(filled.pixels[there], asked[there], rtol=1e-5, atol=1e-5)


# D7: without a party that cannot be reached, the others are the federation.

REACHABLE = [s for r in (2, 3) for s in itertools.combinations(range(4), r)]
HOLDINGS = ["FFFF", "FFPF", "PFFP", "FPFG", "PPPP", "F-P-", "PF-F", "GGPP", "-PF-", "FFF-"]


def alone(problem: Problem, parties: Sequence[int]) -> Problem:
    """Build the federation that has only these parties, and only rows that one of them saw."""
    keep = problem.rows.seen[:, list(parties)].any(1).nonzero().flatten()
    rows = problem.rows
    columns = {
        name: torch.stack([getattr(rows, name)[keep, i] for i in parties], 1)
        for name in ("handles", "full", "seen")
    }
    small = Rows(**columns, y=rows.y[keep], weight=rows.weight[keep], step=rows.step)
    nets_, tables = [problem.parties[i] for i in parties], [problem.tables[i] for i in parties]
    return Problem(nets_, tables, problem.head, small, [problem.names[i] for i in parties])


@pytest.mark.parametrize("parties", REACHABLE)
def test_D7_the_loss_is_that_of_the_reachable_parties(parties: tuple[int, ...]) -> None:
    problem = make_problem([NUMBERS] * 4, HOLDINGS, seed=9)
    fewer = alone(problem, parties)
    seen = problem.rows.seen[:, list(parties)].any(1).nonzero().flatten()
    some = replace(problem, rows=problem.rows.take(seen, problem.rows.step))
    terms, expected = terms_of(some, parties, OURS), terms_of(fewer, weights=OURS)
    assert terms.keys() == expected.keys()
    for name in terms:
        close(terms[name], expected[name])
    options = twin.Options(WEIGHTS.lambda1, WEIGHTS.lambda2)
    slow = twin.loss(fewer.twin_parties(), fewer.head, fewer.twin_rows(), options)
    for name in ("decision", "dsalign1", "dsalign2"):
        close(terms[name], getattr(slow, name))
    assert terms["dsalign1"] > 0
    torch.stack(list(terms.values())).sum().backward()
    gone = [n for n in range(4) if n not in parties]
    for name, gradient in problem.gradients().items():
        assert not (name.startswith(tuple(f"p{n}." for n in gone)) and gradient.any())


@pytest.mark.parametrize("mode", ["local", "assisted", "collaborative", "peers"])
@pytest.mark.parametrize("parties", REACHABLE)
def test_D7_predictions_are_those_of_the_reachable_parties(
    parties: tuple[int, ...], mode: Any
) -> None:
    problem = make_problem([NUMBERS] * 4, HOLDINGS, seed=9)
    method = XVFL(problem.head, WEIGHTS)
    seen = problem.rows.seen[:, list(parties)].any(1).nonzero().flatten()
    fewer = alone(problem, parties)
    rows = problem.rows.take(seen).select_parties(parties)
    for net in problem.parties:
        net.eval()
    for party in range(len(parties)):
        found = method.logits(problem.federation().select_parties(parties), rows, mode, party)
        close(found, method.logits(fewer.federation(), fewer.rows, mode, party))


def test_D7_an_unreachable_party_is_not_an_absent_row() -> None:
    problem = make_problem([NUMBERS] * 3, ["FF-"], seed=2)
    absent, unreachable = terms_of(problem), terms_of(problem, [0, 1])
    assert absent["dsalign1"] == 0 < unreachable["dsalign1"]
    method, both = XVFL(problem.head, WEIGHTS), problem.rows.select_parties([0, 1])
    for net in problem.parties:
        net.eval()
    out = method.logits(problem.federation().select_parties([0, 1]), both, "collaborative", 0)
    E = problem.federation().embed(problem.rows, ["plain"])[:, :2, 0]
    close(out, problem.head(E.mean(1)))
    assert not torch.allclose(
        out, method.logits(problem.federation(), problem.rows, "collaborative", 0)
    )


def test_D7_rows_that_no_reachable_party_saw_teach_nothing() -> None:
    problem = make_problem([NUMBERS] * 3, ["FFF", "--F"], seed=2)
    fewer = alone(problem, [0, 1])
    close(terms_of(problem, [0, 1])["decision"] * 2, terms_of(fewer)["decision"])


def test_D7_a_model_without_a_partys_table_is_the_model_of_the_others() -> None:
    sources, labels = frames(gaps=0.4)
    ready = prepared(sources, labels)
    model = model_of(ready)
    said = model.predict({name: sources[name] for name in ("bank", "web")}, "collaborative")
    sides = [PartyWorker(n, model.parties[n].eval(), ready.tables[n], [0]) for n in ("bank", "web")]
    with torch.no_grad():
        out = model.method.logits(
            FusedFederation(sides), ready.rows.select_parties([0, 2]), "collaborative", 0
        )
    np.testing.assert_allclose(said.values, torch.softmax(out.double(), 1).numpy(), atol=1e-6)


def assisted(holding: str, weights: XVFLWeights) -> tuple[Tensor, Tensor]:
    """Return the assisted and the local logits of a row at the first of three parties."""
    problem = make_problem([NUMBERS] * 3, [holding], seed=4)
    for net in problem.parties:
        net.eval()
    method = XVFL(problem.head, weights)
    both = (method.logits(problem.federation(), problem.rows, m, 0) for m in ("assisted", "local"))
    return next(both), next(both)


@pytest.mark.parametrize("holding", ["PP-", "P-P", "-PP", "PPP"])
def test_D8_a_partial_peer_assists_where_no_party_is_full(holding: str) -> None:
    with_peer, without = assisted(holding, XVFLWeights(0.1, 0.1, self_completion=1.0))
    assert not torch.allclose(with_peer, without)
    problem = make_problem([NUMBERS] * 3, [holding], seed=4)
    full, seen = problem.rows.full, problem.rows.seen
    assert maths.assistants(full, seen, 0, True).tolist() == [
        [False, *(each == "P" for each in holding[1:])]
    ]


@pytest.mark.parametrize("holding", ["FP-", "P--", "P-E"])
def test_D8_a_full_party_or_one_without_peers_predicts_alone(holding: str) -> None:
    close(*assisted(holding, XVFLWeights(0.1, 0.1, self_completion=1.0)))


def test_D8_a_full_peer_assists_without_partial_ones() -> None:
    problem = make_problem([NUMBERS] * 3, ["PFP"], seed=4)
    full, seen = problem.rows.full, problem.rows.seen
    assert maths.assistants(full, seen, 0, True).tolist() == [[False, True, False]]


@pytest.mark.parametrize("holding", ["PP-", "P-P"])
def test_D8_the_paper_needs_a_full_peer(holding: str) -> None:
    close(*assisted(holding, XVFLWeights(0.1, 0.1)))
