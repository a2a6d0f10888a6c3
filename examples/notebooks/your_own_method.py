# %% [markdown]
# # A method of your own
#
# A method is a class that is written against `Federation`. It sees embeddings and labels, never features, and works in one process and
# across organizations without change. This tutorial writes one in 30 lines, trains it with `XVFLClassifier`, and compares it with methods
# of the package.
#
# ## The data
#
# One party holds the left half of scanned digits, the other the right half. A third of the pixels is missing.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

plt.rcParams["figure.dpi"] = 110
digits = load_digits()
rng = np.random.default_rng(0)
ids = [f"image {i}" for i in range(len(digits.target))]
pixels = digits.images / 16
pixels[rng.random(pixels.shape) < 0.33] = np.nan
halves = {
    name: pd.DataFrame(part.reshape(len(part), -1), index=ids).add_prefix("pixel ")
    for name, part in {"left": pixels[:, :, :4], "right": pixels[:, :, 4:]}.items()
}
y = pd.Series(digits.target, index=ids)
test = y.sample(frac=0.4, random_state=0).index
train = {name: half.drop(test) for name, half in halves.items()}
new = {name: half.loc[test] for name, half in halves.items()}

figure, axes = plt.subplots(1, 8, figsize=(8, 1.3), layout="constrained")
for number, axis in enumerate(axes):
    axis.imshow(pixels[number], cmap="Greys", vmin=0, vmax=1)
    axis.axvline(3.5, color="#d95f02")
    axis.set(xticks=[], yticks=[], title=str(digits.target[number]))
plt.show()

# %% [markdown]
# ## The idea
#
# Each party gets a head of its own, and the joint prediction is a product of experts: the sum of their log-probabilities. Bottoms are trained
# on masked copies of the rows, so that they learn to predict with missing features.
#
# A method has five members ([Extend xvfl](../extending.md#add-a-method)):

# %%
import torch
from torch import nn


class ProductOfExperts:
    """One head per party; their log-probabilities are added."""

    modes = frozenset(("local", "collaborative"))

    def __init__(self, heads, task):
        self.heads, self.task = heads, task

    def select_parties(self, parties):
        return ProductOfExperts(nn.ModuleList([self.heads[i] for i in parties]), self.task)

    def _decide(self, federation, rows, view):
        """Log-probabilities of each party (B, k, C)."""
        E = federation.embed(rows, [view])[:, :, 0]
        out = [head(E[:, i]) for i, head in enumerate(self.heads)]
        return torch.stack(out, 1).log_softmax(-1)

    def loss(self, federation, rows):
        own = self._decide(federation, rows, "masked")
        seen = rows.seen.to(own.dtype)
        joint = self.task.loss((own * seen.unsqueeze(-1)).sum(1), rows.y)
        alone = (self.task.loss(own, rows.y) * seen).sum(1)
        return {"joint": (joint * rows.weight).mean(), "alone": (alone * rows.weight).mean()}

    def logits(self, federation, rows, mode, party):
        own = self._decide(federation, rows, "plain")
        if mode == "local":
            return own[:, party]
        return (own * rows.seen.unsqueeze(-1)).sum(1)


# %% [markdown]
# `loss` returns named terms, which are added; they are in `history_` and in the records of a run. `rows.seen` tells which party observes a
# row. Register the class under a name, and train it like any other method:

# %%
from xvfl import XVFLClassifier
from xvfl.methods import MethodSpec, register_method

register_method(
    "experts",
    MethodSpec(lambda loss, parts: ProductOfExperts(parts.heads(parts.width), parts.task)),
)
mine = XVFLClassifier(method="experts", members=1, epochs=30, verbose=False)
mine.fit(train, y.drop(test))
mine.score(new, y)

# %%
history = pd.DataFrame(mine.history_)
axis = history.plot(x="epoch", y=["joint", "alone"], figsize=(6, 2.8), ylabel="training loss")
axis.grid(alpha=0.3)
plt.show()

# %% [markdown]
# Calibration, early stopping, saving, `explain` and training over the wire need nothing more. `explain` for example:

# %%
mine.explain(new, y, n_repeats=0).parties.round(3)

# %% [markdown]
# ## Compare
#
# The same rows, nets, epochs and seeds for every method:

# %%
scores = {}
for method in ("standalone", "laser", "experts", "xvfl+"):
    for seed in range(2):
        model = XVFLClassifier(
            method=method, members=1, epochs=30, random_state=seed, verbose=False
        ).fit(train, y.drop(test))
        for mode, party in (("local", "left"), ("collaborative", None)):
            if mode in model.model_.method.modes:
                scores[method, mode, seed] = model.score(new, y, mode=mode, party=party)
table = pd.Series(scores).unstack(1).groupby(level=0).mean()
table.sort_values("local").round(3)

# %%
axis = table.sort_values("local").plot.barh(figsize=(6, 2.8), xlabel="accuracy, mean of two seeds")
axis.set_xlim(0.4, 1)
axis.grid(axis="x", alpha=0.3)
plt.show()

# %% [markdown]
# To contribute a method to xvfl, compare its loss and gradients with a slow, obvious implementation: see
# [Extend xvfl](../extending.md#add-a-method).
