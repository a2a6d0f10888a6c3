"""The paper's claims: the verdicts that runs of each kind lead to; and the standings of `xvfl+`."""

from collections.abc import Mapping

import pytest

from xvfl_lab.experiments import claims, standings
from xvfl_lab.experiments.claims import (
    BASELINES,
    CLAIMS,
    LARGELY,
    NOT,
    OPEN,
    PARTLY,
    REPRODUCED,
    Answer,
    Cases,
    Evidence,
    Runs,
)
from xvfl_lab.experiments.figures import METHODS
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.stacked_runs import RunConfig

Values = Mapping[str, float | Mapping[str, float]]
"""By "METHOD MODE": the metric, or one by rate."""
INDEPENDENT = ("local", "assisted")


def results(values: Values, rates: tuple[float, ...] = (0.0, 0.5, 0.7, 0.9, 1.0)) -> list[Result]:
    """Two seeds of every method, all at 0.5 in every mode but where a value is given."""
    runs = []
    for method in METHODS:
        more = ["assisted", "assisted/a", "assisted/b", "peers"] if "xvfl" in method else []
        modes = ["local", "local/a", "local/b", "local whole", *more, "collaborative"]
        for rate in rates:
            for seed in (0, 1):
                metrics = {}
                for mode in modes:
                    given = values.get(f"{method} {mode}", 0.5)
                    value = given if isinstance(given, float) else given.get(f"{rate:g}", 0.5)
                    metrics[mode] = {"accuracy": value, "auroc": value}
                runs.append(Result(RunConfig(method, rate, seed), metrics, 1.0, 0.5))
    return runs


def best(method: str) -> Values:
    return {f"{method} {mode}": 0.6 for mode in ("local", "assisted", "collaborative")}


def baselines(mode: str, value: float | Mapping[str, float]) -> Values:
    return {f"{name} {mode}": value for name in BASELINES}


def runs_of(figure: str, dataset: str, values: Values) -> Runs:
    return {(figure, dataset): results(values)}


FALLING = baselines("local", {"0": 0.9, "0.9": 0.6})
CASES: list[tuple[str, str, str, Values, str]] = [
    ("P1", "missing-rates", "bank", best("xvfl"), REPRODUCED),
    ("P1", "missing-rates", "bank", {**best("xvfl"), **best("laser+mask")}, REPRODUCED),
    ("P1", "missing-rates", "bank", best("xvfl+"), NOT),
    ("P1", "missing-rates", "bank", {**best("xvfl"), "vanilla local": {"0": 0.7}}, NOT),
    ("P1", "missing-rates", "bank", {**best("xvfl"), "vanilla local": {"0": 0.6}}, LARGELY),
    ("P2", "missing-rates", "utkface", FALLING, REPRODUCED),
    ("P2", "missing-rates", "utkface", {}, PARTLY),
    (
        "P2",
        "missing-rates",
        "utkface",
        {**FALLING, **{f"xvfl {mode}": {"0": 0.6} for mode in INDEPENDENT}},
        PARTLY,
    ),
    (
        "P2",
        "missing-rates",
        "utkface",
        {f"xvfl {mode}": {"0": 0.6} for mode in INDEPENDENT},
        NOT,
    ),
    ("P3", "missing-rates", "utkface", baselines("local", 0.2), REPRODUCED),
    ("P3", "missing-rates", "utkface", {}, PARTLY),
    ("P3", "missing-rates", "utkface", {"xvfl assisted": 0.4}, NOT),
    (
        "P4",
        "missing-rates",
        "cifar10",
        {"xvfl collaborative": 0.7, **baselines("local", 0.1)},
        REPRODUCED,
    ),
    ("P4", "missing-rates", "cifar10", baselines("local", 0.1), PARTLY),
    ("P4", "missing-rates", "cifar10", {}, NOT),
    ("P5", "missing-rates", "cifar10", {"xvfl assisted": {"0.9": 0.66}}, REPRODUCED),
    ("P5", "missing-rates", "cifar10", {"xvfl assisted": {"0.9": 0.6}}, PARTLY),
    ("P5", "missing-rates", "cifar10", {"xvfl assisted": {"1": 0.66}}, NOT),
    ("P5", "missing-rates", "cifar10", {"xvfl+ assisted": 0.9}, NOT),
    ("P6", "missing-rates", "physionet2012", {"xvfl assisted": 0.94}, OPEN),
    (
        "P7",
        "imbalance",
        "physionet2012",
        {**baselines("local/a", 0.8), "xvfl local/a": 0.6},
        REPRODUCED,
    ),
    (
        "P7",
        "imbalance",
        "physionet2012",
        {**baselines("local/a", 0.8), "xvfl local/a": 0.7, "xvfl assisted/b": 0.3},
        NOT,
    ),
    ("P8", "four-parties", "physionet2012", best("xvfl"), REPRODUCED),
    ("P8", "four-parties", "physionet2012", best("laser"), NOT),
]


@pytest.mark.parametrize(("claim", "figure", "dataset", "values", "verdict"), CASES)
def test_verdicts(claim: str, figure: str, dataset: str, values: Values, verdict: str) -> None:
    answer = CLAIMS[claim].judge(Evidence(runs_of(figure, dataset, values)))
    assert answer.verdict == verdict, answer
    assert answer.measured and answer.details


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((10, 10, 0, 10), REPRODUCED),
        ((8, 9, 0, 10), LARGELY),
        ((5, 9, 0, 10), PARTLY),
        ((4, 9, 0, 10), NOT),
        ((9, 9, 1, 10), NOT),
    ],
)
def test_rankings_are_graded_by_the_cases_ahead(counts: tuple[int, ...], verdict: str) -> None:
    assert Cases(*counts).verdict == verdict


def test_independent_prediction_at_rate_one_is_no_case() -> None:
    runs = results(best("xvfl"))
    assert claims.cases(runs, "xvfl", "assisted", "auroc") == Cases(4, 4, 0, 4)
    assert claims.cases(runs, "xvfl", "collaborative", "auroc") == Cases(5, 5, 0, 5)
    assert claims.cases(runs, "laser", "assisted", "auroc") == Cases()


def test_all_pairs_are_half_incomplete_and_half_full() -> None:
    runs = results({"xvfl assisted": 0.4, "xvfl local whole": 0.6, "xvfl local": 0.2})
    found = claims.readings(runs, 0.5)
    assert found["xvfl"]["assisted, all pairs"] == pytest.approx(50)
    assert found["xvfl"]["local, all pairs"] == pytest.approx(40)
    assert "assisted" not in found["vanilla"]


def test_a_claim_without_runs_is_open() -> None:
    empty = Evidence({})
    assert {claim.judge(empty).verdict for claim in CLAIMS.values()} == {OPEN}


def confidence(chosen: float, average: float) -> Answer:
    def of(rise: float) -> dict[str, float]:
        return {"single": 0.5, "single-xcom": 0.5 + rise, "both": 0.9}

    means = {case: {"confidence": {"mean": value}} for case, value in of(average).items()}
    method = {"example": {"confidence": of(chosen)}, "absent": {"left": {"cases": means}}}
    return CLAIMS["P9"].judge(Evidence({}, {"confidence": {"methods": {"xvfl": method}}}))


def test_confidence_is_judged_on_average() -> None:
    assert confidence(0.2, 0.1).verdict == REPRODUCED
    assert confidence(0.2, 0.0).verdict == PARTLY
    assert confidence(0.0, -0.1).verdict == NOT


@pytest.mark.parametrize(
    ("page", "loss", "verdict"),
    [(-0.95, 1.0, REPRODUCED), (-0.95, 3.0, PARTLY), (-0.6, 1.0, NOT)],
)
def test_rounds_are_judged_on_both_problems(page: float, loss: float, verdict: str) -> None:
    figures = {
        "known problem": {"exponent": {"sgd": -0.5, "page": page}},
        "digits": {"sgd": {"last loss": 2.0}, "page": {"last loss": loss}},
    }
    assert CLAIMS["P10"].judge(Evidence({}, {"rounds": figures})).verdict == verdict


def test_the_table_of_lambda_names_the_papers_ranges() -> None:
    lines = claims.lambda_table()
    assert "| cifar10 | 0.1 | 0.01 to 0.5 | 0.1 | 1e-05 to 0.0005 |" in lines


def test_positions_where_a_rival_is_ahead() -> None:
    assert standings.behind(runs_of("missing-rates", "bank", best("xvfl+"))) == []
    values = {
        "laser collaborative": {"0": 0.6},
        "xvfl+ assisted": {"0": 0.4, "0.9": 0.45},
        "laser local": {"1": 0.6},
    }
    assert standings.behind(runs_of("missing-rates", "bank", values)) == [
        "missing-rates, bank, R_miss 0: laser by 10.0 in `collaborative`",
        "missing-rates, bank, R_miss 0.9: xvfl by 5.0 in `assisted`, peers alone by 5.0 in "
        "`assisted`",
    ]
