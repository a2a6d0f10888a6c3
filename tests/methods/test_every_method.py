"""What every method must do: learn by heart, not beyond chance, refuse, keep stacked runs apart."""

import doctest
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import torch
from torch import nn

from tests import command_line, small_tables
from tests.options import resolved
from tests.problems import (
    CLASSES,
    NUMBERS,
    SEED,
    accuracies,
    make_problem,
    split_digits,
    train_small,
)
from xvfl import XVFLClassifier, methods
from xvfl.config import METHOD_NAMES, LossConfig, NetConfig
from xvfl.errors import ConfigError, InputError, ModeError
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods import METHODS, Method, MethodSpec, Mode, base, register_method, unregister_method
from xvfl.methods.build import build_method, build_parties
from xvfl.methods.vanilla import Vanilla
from xvfl.primitives.layout import any_image
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Classification
from xvfl.training.predict import logits

WAYS = {
    "xvfl+": {"local", "assisted", "collaborative", "peers"},
    "xvfl": {"local", "assisted", "collaborative", "peers"},
    "standalone": {"local"},
    "vanilla": {"local", "collaborative"},
    "laser": {"local", "collaborative", "peers"},
    "laser+mask": {"local", "collaborative", "peers"},
}
ABLATIONS = [
    {"cross_completion": False},
    {"aggregation": "concat"},
    {"cross_completion": False, "aggregation": "concat"},
    {"lambda1": 0.0},
    {"lambda2": 0.0},
    {"self_completion": 0.0},
    {"guidance": 0.0},
]
EVERY = [LossConfig(method=name) for name in WAYS]
EVERY += [LossConfig(method="xvfl+", **switch) for switch in ABLATIONS]


def named(loss: LossConfig) -> str:
    changed = [f"{k}={v}" for k, v in vars(loss).items() if v != getattr(LossConfig(), k)]
    return " ".join(changed) or loss.method


def test_the_configuration_knows_every_method() -> None:
    assert list(METHODS) == METHOD_NAMES and set(WAYS) <= set(METHODS)
    with pytest.raises(ConfigError, match="unknown method 'lazer': did you mean 'laser'"):
        LossConfig(method="lazer")


def test_methods_of_the_lab_are_named() -> None:
    if "fedcvt" in METHODS:
        pytest.skip("the lab's methods are registered")
    with pytest.raises(ConfigError, match="`import xvfl_lab.methods` first"):
        LossConfig(method="fedcvt")


def test_a_registered_method_trains_like_every_other() -> None:
    spec = MethodSpec(lambda loss, parts: Vanilla(parts.joint()))
    register_method("mine", spec)
    try:
        with pytest.raises(ConfigError, match="method 'mine': already registered"):
            register_method("mine", spec)
        options = resolved(loss=LossConfig(method="mine"))
        method = build_method(
            2, Classification(range(CLASSES)), False, options.net, options.loss, [0]
        )
        assert isinstance(method, Vanilla)
    finally:
        unregister_method("mine")
    with pytest.raises(ConfigError, match="unknown method 'mine'"):
        LossConfig(method="mine")


@pytest.mark.parametrize("module", [methods, base])
def test_the_examples_in_docstrings_run(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


# Vanilla's head never meets zeros in a peer's place while it learns: alone, it may be wrong.
UNTRAINED = {"vanilla": {"local/0", "local/1"}}


@pytest.mark.parametrize("loss", EVERY[: len(WAYS) + 2], ids=named)
def test_64_rows_are_learned_by_heart(loss: LossConfig) -> None:
    tables, rows = split_digits(64)
    excused = UNTRAINED.get(loss.method, set())
    trained = train_small(loss, tables, rows, epochs=100 if excused else 300)
    found = accuracies(*trained, rows)
    assert {name.split("/")[0] for name in found} == trained[0].modes
    assert {found[name] for name in found if name not in excused} == {1.0}, found


@pytest.mark.parametrize("method", WAYS)
def test_shuffled_labels_leave_test_rows_at_chance(method: str) -> None:
    tables, rows = split_digits(500, shuffled=True)
    first, rest = torch.arange(500).split([128, 372])
    trained = train_small(LossConfig(method=method), tables, rows.take(first), epochs=10)
    spread = math.sqrt(2 / 9 / len(rest))
    found = accuracies(*trained, rows.take(rest))
    assert all(abs(share - 1 / CLASSES) < 4 * spread for share in found.values()), found


def small_federation(loss: LossConfig, *seeds: int) -> tuple[Method, FusedFederation, Rows]:
    """Put a method's own nets to work on rows of every kind, in double precision."""
    holdings = ["FF", "FP", "PF", "F-", "GF", "PP", "FF", "-F"] * 2
    problem = make_problem([NUMBERS] * 2, holdings, seed=1)
    layouts = {"p0": NUMBERS, "p1": NUMBERS}
    options = resolved(NetConfig(embedding_dim=4, hidden_dim=6), loss)
    net, loss = options.net, options.loss
    with torch.random.fork_rng(devices=[]):
        parties = build_parties(layouts, net, loss, seeds)
        method = build_method(
            len(layouts), Classification(range(CLASSES)), any_image(layouts), net, loss, seeds
        )
    method.heads.double()
    each = zip(layouts, problem.tables, strict=True)
    weight = loss.reconstruction_weight
    sides = [PartyWorker(n, parties[n].double(), table, seeds, weight) for n, table in each]
    return method, FusedFederation(sides), problem.rows


@pytest.mark.parametrize("loss", EVERY, ids=named)
def test_a_mode_it_does_not_have_is_refused(loss: LossConfig) -> None:
    method, federation, rows = small_federation(loss, SEED)
    has = WAYS[loss.method] - (set() if loss.cross_completion else {"assisted"})
    can = ", ".join(mode for mode in ("local", "assisted", "collaborative") if mode in has)
    for mode in get_args(Mode):
        if mode in has:
            assert logits(method, federation, rows, mode, 1).isfinite().all()
        else:
            with pytest.raises(
                ModeError, match=f"cannot predict in mode '{mode}'; supported: {can}$"
            ):
                logits(method, federation, rows, mode, 1)


@pytest.mark.parametrize("loss", EVERY, ids=named)
def test_a_party_decides_the_same_whether_its_peers_are_asked_or_not(loss: LossConfig) -> None:
    method, federation, rows = small_federation(loss, SEED)
    federation.train(False)
    for party in range(len(federation.names)):
        with torch.no_grad():
            asked = method.logits(federation, rows, "local", party).float()
        torch.testing.assert_close(logits(method, federation, rows, "local", party), asked)


@pytest.mark.parametrize("loss", EVERY, ids=named)
def test_stacked_runs_lose_the_mean_of_what_each_loses_alone(loss: LossConfig) -> None:
    """Nets of two seeds, different rows in each run, and the random draws of training."""
    halves = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7]), torch.tensor([8, 8, 10, 11, 9, 9, 8, 15])
    apart = []
    for seed, index in zip((3, 4), halves, strict=True):
        method, federation, rows = small_federation(loss, seed)
        apart.append(method.loss(federation, rows.take(index, rows.step)))
    assert not torch.allclose(sum(apart[0].values()), sum(apart[1].values()))
    method, federation, rows = small_federation(loss, 3, 4)
    stacked = replace(rows.take(torch.cat(halves), rows.step), runs=2)
    for name, term in method.loss(federation, stacked).items():
        torch.testing.assert_close(term, (apart[0][name] + apart[1][name]) / 2)


def test_rows_carry_their_runs() -> None:
    _, rows = split_digits(4)
    rows = replace(rows, runs=2)
    same = [rows.take(torch.arange(2)), rows.select_parties([1]), rows.to(torch.device("cpu"))]
    assert [each.runs for each in same] == [2, 2, 2]


@pytest.mark.parametrize(
    "said",
    [
        'method = "vanilla"',
        'cross_completion = false\naggregation = "concat"',
    ],
)
@pytest.mark.slow
def test_a_configuration_trains_evaluates_and_predicts(said: str, tmp_path: Path) -> None:
    config = small_tables.write_run_inputs(tmp_path, f"{small_tables.CONFIG}\n[loss]\n{said}\n")
    run = tmp_path / "run"
    assert command_line.run_xvfl("train", config, "--out", run).code == 0
    assert command_line.run_xvfl("evaluate", run).code == 0
    shop = f"shop={tmp_path / 'shop.parquet'}"
    alone = command_line.run_xvfl(
        "predict", run, shop, "--mode", "local", "--out", tmp_path / "a.csv"
    )
    assert alone.code == 0, alone
    together = ("--mode", "collaborative", "--out", tmp_path / "b.csv")
    assert command_line.run_xvfl("predict", run, shop, *together).code == 0
    assisted = ("--mode", "assisted", "--out", tmp_path / "c.csv")
    refused = command_line.rejected_with("predict", run, shop, *assisted)
    assert "cannot predict in mode 'assisted'; supported: local, collaborative" in refused


def test_own_bottoms_are_built_for_every_branch_and_own_heads_need_one_embedding(
    two_encoders: str,
) -> None:
    bank, shop, y = small_tables.make_tables()
    both, size = {"bank": bank, "shop": shop}, {"embedding_dim": 4, "hidden_dim": 6, "epochs": 1}
    own = {"bank": lambda layout, d: nn.Linear(layout.encoded + layout.raw, d)}
    fitted = XVFLClassifier(method=two_encoders, bottoms=own, **size).fit(both, y)
    bottoms = fitted.model_.parties["bank"].bottom.bottoms
    assert [type(each) for each in bottoms] == [nn.Linear, nn.Linear]
    assert not torch.equal(bottoms[0].weight, bottoms[1].weight)
    with pytest.raises(InputError, match="vanilla needs a head over several"):
        XVFLClassifier(method="vanilla", head=nn.Linear(4, 2), **size).fit(both, y)
    wide = dict.fromkeys(both, lambda layout, d: nn.Linear(layout.encoded + layout.raw, d + 1))
    with pytest.raises(InputError, match="the head does not fit"):
        XVFLClassifier(method="vanilla", bottoms=wide, **size).fit(both, y)
