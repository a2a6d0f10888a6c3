"""The figures that are grids of runs. Torch and numpy alone.

A job is a run on a data set. A figure is a function from a data set and a budget to jobs. A run
that two figures share is the same job, so it is computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from xvfl.config import AUTO, LossConfig, NetConfig, TrainConfig
from xvfl.errors import ConfigError
from xvfl_lab.experiments.stacked_runs import RunConfig
from xvfl_lab.methods import METHODS
from xvfl_lab.scenarios import KINDS, Kind

SOME_RATES = (0.0, 0.5, 0.9, 1.0)
OURS = "xvfl+"
TABLES = ("bank", "avazu", "physionet2012", "mimic3")
IMAGES = ("cifar10", "utkface", "tinyimagenet5")


ONE_MEMBER = NetConfig(members=1, number_embedding_dim=0, seeing_completers=False)
STORED_INTERVAL = 4
"""`completion_interval` of several members in the stored runs; today's default is larger."""
SEVERAL_MEMBERS = NetConfig(32, 64, number_embedding_dim=8, members=4, seeing_completers=False)


@dataclass(frozen=True)
class Budget:
    """Rows, epochs and seeds of a data set, the same for every method."""

    train_rows: int
    """Size of a fixed random sample of the training rows; 0 = all rows."""
    test_rows: int
    """Size of a fixed random sample of the test rows; 0 = all rows."""
    epochs: int
    seeds: int
    """Number of seeds of every figure."""
    rates: tuple[float, ...]
    """R_miss of the figure over missing rates."""
    batch_size: int = 0
    learning_rate: float = 2e-3
    net: NetConfig = ONE_MEMBER
    joint_masks: bool = True
    """Of `xvfl+`."""
    precision: Literal["float32", "bf16"] = "float32"
    half_resolution: bool = False
    """Images at half their height and width."""
    more_seeds: int = 0
    """Additional seeds of the figures over missing rates."""
    weights: Literal["best", "calibrated"] = "best"
    """Whether validation rows also weigh the decisions of `xvfl+` (D9)."""
    image_shift: float = 0.0


TABLE_BUDGET = Budget(
    0, 0, 16, 5, (0.0, 0.5, 0.9), 0, 4e-3, SEVERAL_MEMBERS, more_seeds=5, weights="calibrated"
)
FULL: dict[str, Budget] = {
    **dict.fromkeys(TABLES, TABLE_BUDGET),
    "cifar10": Budget(16_000, 4_000, 20, 3, SOME_RATES, 200, 5e-4, ONE_MEMBER, False, "bf16"),
    "utkface": Budget(0, 0, 16, 3, SOME_RATES, 200, 5e-4, ONE_MEMBER, False, "bf16"),
    "tinyimagenet5": Budget(0, 0, 60, 5, SOME_RATES, 200, 5e-4, ONE_MEMBER, False, "bf16"),
}
"""Budgets of the published results."""
SMALL = NetConfig(
    embedding_dim=32,
    hidden_dim=64,
    n_blocks=2,
    base_channels=8,
    members=1,
    number_embedding_dim=0,
    seeing_completers=False,
)
QUICK: dict[str, Budget] = {
    **dict.fromkeys(TABLES, Budget(4_000, 2_000, 6, 2, SOME_RATES, 128)),
    **dict.fromkeys(
        IMAGES, Budget(1_000, 500, 8, 1, (0.0, 0.9), 50, 2e-3, SMALL, half_resolution=True)
    ),
}
"""Budgets of `--quick`, for two cores."""


@dataclass(frozen=True)
class Job:
    """One run on a data set."""

    dataset: str
    parties: int
    train_rows: int
    test_rows: int
    config: RunConfig
    half_resolution: bool = False

    @property
    def run(self) -> RunConfig:
        """The configuration that results report."""
        return self.config


def missing_rates(dataset: str, budget: Budget) -> list[Job]:
    """Every method at every missing rate, two parties (P1, P2, P4, P5)."""
    return make_jobs(dataset, _with_more_seeds(budget), rates=budget.rates)


def mode_gap(dataset: str, budget: Budget) -> list[Job]:
    """Independent against collaborative prediction at R_miss 0.9 (P3)."""
    return make_jobs(dataset, _with_more_seeds(budget), rates=(0.9,))


def _with_more_seeds(budget: Budget) -> Budget:
    return replace(budget, seeds=budget.seeds + budget.more_seeds)


def overlap(dataset: str, budget: Budget) -> list[Job]:
    """0.2, 0.4 and 0.8 of the training rows aligned, at R_miss 0.5."""
    return [
        job
        for overlap in (0.2, 0.4, 0.8)
        for job in make_jobs(dataset, budget, rates=(0.5,), overlap=overlap)
    ]


def imbalance(dataset: str, budget: Budget) -> list[Job]:
    """Full rows of the two parties 80 : 20, overlap 0.2, R_miss 0.5 (P7)."""
    return make_jobs(dataset, budget, rates=(0.5,), overlap=0.2, imbalance=0.8)


def images(dataset: str, budget: Budget) -> list[Job]:
    """Images with all rows and today's losses and nets: random shifts, seeing completers (`xvfl+`).

    Only the nearest rival of `missing-rates` is compared.
    """
    budget = _image_budget(budget, 5 if dataset == "cifar10" else budget.seeds)
    return make_jobs(dataset, budget, rates=(0.5, 0.9), methods=(OURS, "laser+mask"))


def images_four_parties(dataset: str, budget: Budget) -> list[Job]:
    """Images with all rows, today's losses and nets and four parties; the budget of two."""
    methods = (OURS, "laser+mask", "laser", "vanilla")
    budget = _image_budget(budget, 3)
    return make_jobs(dataset, budget, rates=(0.5, 0.9), methods=methods, parties=4)


def _image_budget(budget: Budget, seeds: int) -> Budget:
    """Return a budget with today's losses and nets; all rows, unless it is quick."""
    if not budget.half_resolution:
        budget = replace(budget, train_rows=0, test_rows=0, seeds=seeds)
    net = replace(budget.net, seeing_completers=True)
    return replace(budget, net=net, joint_masks=False, weights="calibrated", image_shift=0.125)


def four_parties(dataset: str, budget: Budget) -> list[Job]:
    """Four parties with the paper's λ1 = λ2 = 0.01 and batch size 100 (P8).

    Images have half the epochs and, where the budget samples training rows, half of those.
    """
    if dataset in IMAGES:
        budget = replace(budget, train_rows=budget.train_rows // 2, epochs=budget.epochs // 2)
    budget = replace(budget, batch_size=100)
    rates = (0.0, 0.3, 0.5, 0.7, 1.0)
    loss = {"lambda1": 0.01, "lambda2": 0.01, "self_completion": 1.0}
    return make_jobs(dataset, budget, rates=rates, parties=4, loss=loss)


ABLATIONS: dict[str, dict[str, object]] = {
    "xvfl+": {},
    "without cross completion": {"cross_completion": False},
    "without DSAlign1": {"lambda1": 0.0},
    "without DSAlign2": {"lambda2": 0.0},
    "without DSAlign": {"lambda1": 0.0, "lambda2": 0.0},
    "without self completion": {"self_completion": 0.0},
    "without guidance": {"guidance": 0.0},
    "without reconstruction": {"reconstruction": 0.0},
    "without joint masks": {"joint_masks": False},
    "two masked copies": {"n_masks": 2},
    "concatenation": {"aggregation": "concat"},
}


IMAGE_ABLATIONS = (
    "xvfl+",
    "without cross completion",
    "without DSAlign",
    "without self completion",
)
"""The ablations of images: cross completion, both alignment losses, and self completion."""


def ablations(dataset: str, budget: Budget) -> list[Job]:
    """`xvfl+` without one of its parts at a time, at R_miss 0.5 and 0.9.

    Images have the settings of the figure `images`.
    """
    names: Sequence[str] = tuple(ABLATIONS)
    if dataset in IMAGES:
        budget, names = _image_budget(budget, budget.seeds), IMAGE_ABLATIONS
    rates = (0.5, 0.9)
    return [
        job
        for name in names
        for job in make_jobs(
            dataset, budget, rates=rates, methods=(OURS,), loss=ABLATIONS[name], name=name
        )
    ]


def kinds(dataset: str, budget: Budget) -> list[Job]:
    """Features missing not at random, and missing in blocks, at R_miss 0.5."""
    above, blocks = (make_jobs(dataset, budget, rates=(0.5,), kind=k) for k in KINDS[1:])
    return above + blocks


FIGURES: dict[str, Callable[[str, Budget], list[Job]]] = {
    "missing-rates": missing_rates,
    "mode-gap": mode_gap,
    "overlap": overlap,
    "imbalance": imbalance,
    "four-parties": four_parties,
    "ablations": ablations,
    "kinds": kinds,
    "images": images,
    "images-four-parties": images_four_parties,
}
"""The figures that are grids of runs, by name."""


PUBLISHED: dict[str, tuple[str, ...]] = {
    "missing-rates": ("bank", "avazu", "physionet2012", "cifar10", "utkface", "tinyimagenet5"),
    "overlap": ("bank", "physionet2012", "cifar10"),
    "imbalance": ("physionet2012", "cifar10"),
    "four-parties": ("physionet2012", "cifar10"),
    "ablations": ("bank", "physionet2012", "cifar10"),
    "kinds": ("physionet2012",),
    "images": IMAGES,
    "images-four-parties": ("cifar10",),
}
"""The published figures; the report lists those that are incomplete."""


def make_jobs(
    dataset: str,
    budget: Budget,
    *,
    rates: Sequence[float],
    overlap: float = 0.4,
    parties: int = 2,
    methods: Sequence[str] | None = None,
    loss: Mapping[str, object] | None = None,
    name: str | None = None,
    kind: Kind = "uniform",
    imbalance: float | None = None,
) -> list[Job]:
    """List the runs of every method that supports the number of parties, at every rate and seed.

    `loss` overrides options of the loss; `name` replaces the name of the method.
    """
    chosen = methods or [m for m in METHODS if parties == 2 or m != "fedcvt"]
    train = TrainConfig(
        epochs=budget.epochs, batch_size=budget.batch_size, optimizer="adamw", patience=0
    )
    train = replace(train, learning_rate=budget.learning_rate, precision=budget.precision)
    interval = STORED_INTERVAL if (budget.net.members or 1) > 1 else AUTO
    train = replace(train, image_shift=budget.image_shift, completion_interval=interval)
    shared = RunConfig("", 0.0, 0, overlap, budget.net, weights=budget.weights, kind=kind)
    shared = replace(shared, train=train, imbalance=imbalance)
    configs: list[RunConfig] = []
    for method in chosen:
        changes = {"joint_masks": budget.joint_masks, **(loss or {})}
        of_loss = LossConfig(method=method, **changes)  # type: ignore[arg-type]
        of_method = replace(shared, name=name or method, loss=of_loss)
        options = of_method.resolve(dataset in IMAGES, parties, budget.train_rows)
        of_method = replace(of_method, loss=options.loss, train=options.train)
        for seed in range(budget.seeds):
            of_seed = replace(of_method, seed=seed)
            of_seed = replace(of_seed, train=replace(options.train, random_state=seed))
            configs += [replace(of_seed, rate=rate) for rate in rates]
    rows = (budget.train_rows, budget.test_rows)
    return [Job(dataset, parties, *rows, each, budget.half_resolution) for each in configs]


def budget_for(dataset: str, quick: bool) -> Budget:
    """Return the budget of a data set."""
    table = QUICK if quick else FULL
    if dataset not in table:
        raise ConfigError(f"data set {dataset!r}: expected one of {', '.join(table)}")
    return table[dataset]
