# %% [markdown]
# # Explain and report a model
#
# You trained a model on the tables of two organizations. Before it is used, people ask: is it any good, can its probabilities be trusted,
# what does each organization contribute, which columns matter, what did completion change? This tutorial answers with figures that have
# intervals, and writes a page for people without Python.
#
# The tables are those of [Two messy tables](two_messy_tables.md).

# %%
# %%bash
# python examples/tutorial/make_tables.py

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from xvfl import TableOptions, XVFLClassifier

plt.rcParams["figure.dpi"] = 110
clinic = pd.read_csv("clinic.csv", dtype={"patient": str}).set_index("patient")
laboratory = pd.read_parquet("laboratory.parquet")
laboratory = laboratory.set_index(laboratory.pop("patient").map("{:04d}".format))
y = clinic.pop("diagnosis")

test = y.sample(frac=0.4, random_state=3).index
train = {"clinic": clinic.drop(test), "laboratory": laboratory[~laboratory.index.isin(test)]}
new = {"clinic": clinic.loc[test], "laboratory": laboratory[laboratory.index.isin(test)]}
options = TableOptions(na_values=("unknown", "-1"), drop=("visit",), kinds={"zip": "category"})
model = XVFLClassifier(table_options={"clinic": options}, epochs=30, verbose=False)
model.fit(train, y.drop(test))
model.row_counts_

# %% [markdown]
# ## Can the probabilities be trusted?
#
# Probabilities are calibrated on validation rows, for each mode. Of the patients with a predicted probability near 0.7, about 70 %
# should be malignant. Groups of fewer than five patients are left out:

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
for axis, (mode, party) in zip(axes, (("local", "clinic"), ("collaborative", None))):
    proba = model.predict_proba(new, mode=mode, party=party)["malignant"]
    true = (y[proba.index] == "malignant").to_numpy()
    bins = np.minimum((proba.to_numpy() * 5).astype(int), 4)
    for number in np.unique(bins):
        some = bins == number
        share, count = true[some].mean(), some.sum()
        if count < 5:
            continue
        error = 1.96 * np.sqrt(max(share * (1 - share), 0.02) / count)
        axis.errorbar(proba[some].mean(), share, error, fmt="o", color="#00796b", capsize=3)
    axis.plot([0, 1], [0, 1], color="gray", linewidth=1)
    axis.set(title=mode, xlabel="predicted probability", xlim=(0, 1), ylim=(-0.1, 1.1))
axes[0].set_ylabel("share of malignant, 95 % interval")
plt.show()

# %% [markdown]
# ## What is each party worth?
#
# Give `explain` rows that were not used in training. It predicts them with every subset of the parties, and permutes the cells
# of each column. Intervals are 95 % bootstrap intervals over the rows; those of the parties hold jointly for all parties.

# %%
explanation = model.explain(new, y, ids=list(test[:3]))
columns = ["rows", "alone", "without", "adds", "shapley", "shapley_low", "shapley_high"]
explanation.parties[columns].round(3)

# %% [markdown]
# - `alone`: AUROC of the party by itself; a row that it does not observe gets the class prior.
# - `without`: AUROC of the others; `adds` is what the party adds to them.
# - `shapley`: the mean of what it adds to all subsets, with its interval; the values of all parties add up to the AUROC of all minus
#   that of none.
#
# The laboratory knows fewer patients. To compare what the columns are worth, use the patients that both know:

# %%
model.explain(new, y, rows="shared", n_repeats=0).parties[columns].round(3)

# %% [markdown]
# ## Which columns matter?

# %%
explanation.plot(max_features=12)

# %%
explanation.features.head(6).round(3)

# %% [markdown]
# Correlated columns share their importance: permuting one changes little if another says the same.
#
# ## What did completion change?
#
# `completed_cells` lists the filled cells of the rows given as `ids`, and the probability before and after:

# %%
explanation.completed_cells.round(3).head(8)

# %% [markdown]
# How certain are these cells? `complete_details` has an interval or a probability for each:

# %%
details = model.complete_details(new, party="clinic", ids=list(test[:3]))
details.cells

# %% [markdown]
# ## Write a report
#
# A self-contained page for people without Python; `xvfl explain RUN` writes the same for a run folder.

# %%
explanation.save_html("explanation.html", title="Breast cancer: clinic and laboratory")

# %% [markdown]
# And the table that belongs into every report, with the same rows for every mode:

# %%
shared = y[y.index.isin(new["clinic"].index) & y.index.isin(new["laboratory"].index)]
report = pd.DataFrame(
    {
        name: {
            "patients": len(shared),
            "accuracy": model.score(new, shared, mode=mode, party=party),
        }
        for name, mode, party in (
            ("local, clinic", "local", "clinic"),
            ("local, laboratory", "local", "laboratory"),
            ("assisted, clinic", "assisted", "clinic"),
            ("collaborative", "collaborative", None),
        )
    }
).T
report["standard error"] = np.sqrt(report["accuracy"] * (1 - report["accuracy"]) / len(shared))
report.round(3)

# %% [markdown]
# State the limits, too: 569 patients of one study, gaps made at random, one seed. [Explain a model](../explain.md) describes all
# figures; [When is a tree enough?](../modes.md#when-is-a-tree-enough) compares with gradient-boosted trees.
