# %% [markdown]
# # Two messy tables
#
# A clinic and a laboratory know different things about partly the same patients. This tutorial starts
# with two raw files, finds what is wrong with them, trains one model on both, predicts in every mode, fills missing
# cells, and explains the model. It takes about a minute on a laptop.
#
# You need `pip install "xvfl[plots]"`. The data come with scikit-learn; nothing is downloaded.
#
# ## The files
#
# `examples/tutorial/make_tables.py` takes scikit-learn's breast cancer table and makes it messy.

# %%
# %%bash
# python examples/tutorial/make_tables.py
# head -3 clinic.csv

# %% [markdown]
# Look at the files before you train on them:

# %%
# %%bash
# xvfl inspect clinic.csv laboratory.parquet --id patient --label diagnosis

# %% [markdown]
# Most columns are read as they are meant: "$2,459.88" and "32.2 %" are numbers, and `visit` is a day-first date. Four
# things need attention:
#
# - **No row is shared.** The clinic writes ids with leading zeros ("0012"), the laboratory stores numbers (12). Without the warning,
#   a model would train on 967 patients of whom nobody is known to both.
# - `mean texture` has no missing cell, but uses −1 for "not measured", and `size` uses "unknown".
# - `zip` is a code, not a number.
# - `visit` says nothing about the diagnosis.
#
# The first is corrected in the table, the others by `TableOptions`.

# %%
import pandas as pd

from xvfl import TableOptions, XVFLClassifier

clinic = pd.read_csv("clinic.csv", dtype={"patient": str})
laboratory = pd.read_parquet("laboratory.parquet")
laboratory["patient"] = laboratory["patient"].map("{:04d}".format)

options = TableOptions(na_values=("unknown", "-1"), drop=("visit",), kinds={"zip": "category"})

# %%
import matplotlib.pyplot as plt

plt.rcParams["figure.dpi"] = 110
missing = {
    "clinic": clinic.replace({-1: None, "unknown": None}).set_index("patient"),
    "laboratory": laboratory.set_index("patient").reindex(clinic["patient"]),
}
figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for axis, (name, table) in zip(axes, missing.items()):
    gaps = table.isna()
    axis.imshow(gaps, aspect="auto", cmap="Greys", interpolation="nearest")
    axis.set(title=f"{name}: {gaps.mean(axis=None):.0%} missing", xlabel="column")
axes[0].set_ylabel("patient")
plt.show()

# %% [markdown]
# Black cells are missing: at the clinic single cells, at the laboratory mostly whole rows.
#
# ## Train
#
# Keep 30 % of the patients for testing. The clinic's table holds the labels, so `y` names the party and the column.

# %%
test = clinic["patient"].sample(frac=0.3, random_state=0)


def rows(table, wanted):
    return table[table["patient"].isin(test) == wanted]


train = {"clinic": rows(clinic, False), "laboratory": rows(laboratory, False)}
new = {"clinic": rows(clinic, True), "laboratory": rows(laboratory, True)}
y = new["clinic"].set_index("patient")["diagnosis"]

model = XVFLClassifier(
    id_column="patient", table_options={"clinic": options}, epochs=30, verbose=False
)
model.fit(train, ("clinic", "diagnosis"))
model.overlap_

# %% [markdown]
# `overlap_` tells how many rows the parties share: check it whenever you join tables. Everything runs in this process: `fit` simulates
# the federation. Across organizations, training is [different](../uploads.md): each party trains its encoder alone and uploads embeddings once.
#
# ## Predict in every mode
#
# [Four modes](../modes.md) differ in who takes part. Compare them on the same rows, here the test patients that both parties know.

# %%
shared = y[y.index.isin(new["laboratory"]["patient"])]
accuracy = {"most frequent class": shared.value_counts(normalize=True).iloc[0]}
for mode, party in (
    ("local", "clinic"),
    ("local", "laboratory"),
    ("assisted", "clinic"),
    ("collaborative", None),
):
    name = mode if party is None else f"{mode}, {party}"
    accuracy[name] = model.score(new, shared, mode=mode, party=party)

figure, axis = plt.subplots(figsize=(7, 2.4), layout="constrained")
names, values = list(accuracy)[::-1], list(accuracy.values())[::-1]
axis.plot(values, names, "o", color="#00796b")
for name, value in accuracy.items():
    axis.annotate(f"{value:.3f}", (value, name), (6, 4), textcoords="offset points")
axis.set(xlim=(0.55, 1.02), xlabel=f"accuracy on {len(shared)} test patients")
axis.margins(y=0.2)
axis.grid(alpha=0.3)
plt.show()

# %% [markdown]
# With so few patients, one point of accuracy is about one patient: read small differences as noise.
#
# `predict_table` tells how each prediction was obtained. In `assisted` mode a row without a gap needs no help, and a row with few gaps
# counts as full ([`full_threshold`](../method.md#d6-a-row-is-full-above-a-threshold)): the notes say that the clinic decided alone. The
# laboratory helps with the other rows that it knows.

# %%
answers = model.predict_table(new, mode="assisted", party="clinic")
answers.drop(columns="proba_benign").round(3).head(6)

# %%
answers["notes"].value_counts()

# %% [markdown]
# ## Fill missing cells
#
# `complete` returns a table with its missing cells filled. `complete_details` also tells how certain each filled cell is: an interval
# for numbers, a probability for categories.

# %%
details = model.complete_details(new, party="clinic")
details.cells.groupby("column").head(1)

# %% [markdown]
# The true values are known here, because the cells were removed artificially. An interval should hold four of five of them:

# %%
from sklearn.datasets import load_breast_cancer

truth = load_breast_cancer(as_frame=True).data.set_index(clinic["patient"])
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for axis, name in zip(axes, ("mean compactness", "mean smoothness", "mean symmetry")):
    cells = details.cells[details.cells["column"] == name].set_index("id")
    true = truth.loc[cells.index, name]
    low, value, high = (cells[each].astype(float) for each in ("low", "value", "high"))
    inside = (low <= true) & (true <= high)
    axis.errorbar(true, value, [value - low, high - value], fmt=".", color="#00796b", alpha=0.5)
    axis.plot([true.min(), true.max()], [true.min(), true.max()], color="gray", linewidth=1)
    axis.set(title=f"{name}: {inside.mean():.0%} inside", xlabel="true value")
axes[0].set_ylabel("filled value and interval")
plt.show()

# %% [markdown]
# The intervals are calibrated on 60 validation rows here, so the shares scatter; [larger tables](../python.md#complete-missing-values) are
# closer to 80 %. Filled values are predictions, not measurements. Do not use them as data for another study without saying so.
#
# ## Explain the model
#
# What is each party worth, and which columns matter? `explain` compares predictions with every subset of the parties on
# the same rows; nothing is trained again.

# %%
explanation = model.explain(new, ("clinic", "diagnosis"))
explanation.parties[["rows", "alone", "without", "adds", "shapley"]].round(3)

# %%
explanation.plot(max_features=8)

# %% [markdown]
# The next tutorial, [Explain and report a model](explain_and_report.md), reads these figures.
#
# ## Save

# %%
model.save("model")
again = XVFLClassifier.load("model")
bool((again.predict(new) == model.predict(new)).all())

# %% [markdown]
# ## Next
#
# - [Python guide](../python.md): every parameter, images, custom nets
# - [Choose a mode](../modes.md): what each mode needs, what it sends, when it is worth its cost
# - [Configuration](../configuration.md): the same training from a TOML file and the command line
