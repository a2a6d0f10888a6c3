"""Fit two data frames with different rows, columns and gaps; predict in every mode; complete.

The data are scikit-learn's copy of the Wisconsin breast cancer table (569 patients). A clinic
holds the mean measurements, a laboratory the errors and the worst values of most patients. Run it
with `python examples/two_frames.py`, or cell by cell in an editor that supports `# %%`.
"""

# %% The tables of two organizations
import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

from xvfl import XVFLClassifier

data = load_breast_cancer(as_frame=True)
table = data.data.set_axis([f"patient {i}" for i in range(len(data.data))])
y = data.target.map({0: "malignant", 1: "benign"}).set_axis(table.index)

rng = np.random.default_rng(0)
means = [name for name in table if name.startswith("mean")]
clinic = table[means]
laboratory = table.drop(columns=means).sample(frac=0.7, random_state=0)
clinic = clinic.mask(rng.random(clinic.shape) < 0.3)
laboratory = laboratory.mask(rng.random(laboratory.shape) < 0.1)

new = pd.Index(rng.permutation(table.index)[:150])
known = table.index.difference(new)
print(f"clinic: {clinic.shape[0]} rows, {clinic.isna().mean(axis=None):.0%} of the cells missing")
print(f"laboratory: {laboratory.shape[0]} rows, {laboratory.isna().mean(axis=None):.0%} missing")


# %% Train on the known patients
def rows(ids: pd.Index) -> dict[str, pd.DataFrame]:
    """Select the patients with these ids from both tables."""
    return {
        "clinic": clinic.loc[clinic.index.intersection(ids)],
        "laboratory": laboratory.loc[laboratory.index.intersection(ids)],
    }


model = XVFLClassifier(epochs=30, random_state=0).fit(rows(known), y[known])
print(f"\ntrained {len(model.history_)} epochs; classes: {', '.join(model.classes_)}")

# %% Predict the new patients in every mode
new_rows = rows(new)
print(f"most frequent class: {y[new].value_counts(normalize=True).iloc[0]:.3f}")
for mode, party in (
    ("local", "clinic"),
    ("assisted", "clinic"),
    ("peers", "clinic"),
    ("local", "laboratory"),
    ("collaborative", None),
):
    accuracy = model.score(new_rows, y[new], mode, party)
    print(f"{mode:>13} {party or 'all':<10} accuracy {accuracy:.3f}")

# %% The details of each answer
answers = model.predict_table(new_rows, mode="assisted", party="clinic")
print("\n" + answers.head(5).round(3).to_string())

# %% Fill the clinic's missing cells in its own units; observed values stay
gaps = new_rows["clinic"].isna()
filled = model.complete(new_rows, party="clinic")
truth = table.loc[filled.index, means]
error = (filled - truth).abs()[gaps].mean() / truth.std()
guess = (truth - clinic.loc[known].mean()).abs()[gaps].mean() / truth.std()
print("\nmean error of completed cells, in standard deviations (in brackets: the column's mean)")
for name in means[:5]:
    print(f"{name:>16}: {error[name]:.2f} ({guess[name]:.2f})")
