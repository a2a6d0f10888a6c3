"""Write two messy tables: `clinic.csv`, which also holds the labels, and `laboratory.parquet`.

The data are scikit-learn's copy of the Wisconsin breast cancer table (569 patients). Both tables
get the defects of real exports: missing cells, codes that mean "missing", text that is numbers
("$1,240.50", "12 %"), day-first dates, a code that looks like a number, ids that differ in leading
zeros, and patients that only one of the two organizations knows.
"""

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer


def make_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of the clinic and the laboratory."""
    data = load_breast_cancer(as_frame=True)
    rng = np.random.default_rng(7)
    table, n = data.data, len(data.data)
    kinds = ("texture", "smoothness", "compactness", "symmetry", "fractal dimension")
    simple = [f"mean {kind}" for kind in kinds]

    clinic = table[simple].mask(rng.random((n, len(simple))) < 0.3)
    clinic["mean texture"] = clinic["mean texture"].fillna(-1)  # -1 means "not measured"
    size = pd.cut(table["mean area"], [0, 450, 750, np.inf], labels=["small", "medium", "large"])
    clinic["size"] = np.where(rng.random(n) < 0.3, "unknown", size.astype(str))
    visit = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, n), "D")
    clinic["visit"] = visit.strftime("%d/%m/%Y")
    cost = 400 + 2 * table["mean area"] + 200 * rng.random(n)
    clinic["cost"] = cost.map("${:,.2f}".format).where(rng.random(n) > 0.2)
    clinic["zip"] = rng.choice([10115, 20095, 50667, 80331], n)
    clinic["diagnosis"] = data.target.map({0: "malignant", 1: "benign"})
    clinic.insert(0, "patient", [f"{i:04d}" for i in range(n)])

    worst = table[[name for name in table if name.startswith("worst")]]
    laboratory = worst.mask(rng.random(worst.shape) < 0.1)
    concavity = laboratory.pop("worst concavity")
    laboratory["worst concavity"] = (100 * concavity).map("{:.1f} %".format, na_action="ignore")
    laboratory.insert(0, "patient", range(n))  # a number: 12, where the clinic has "0012"
    return clinic, laboratory.sample(frac=0.7, random_state=1)


if __name__ == "__main__":
    clinic, laboratory = make_tables()
    clinic.to_csv("clinic.csv", index=False)
    laboratory.to_parquet("laboratory.parquet", index=False)
    print(f"clinic.csv: {len(clinic)} patients; laboratory.parquet: {len(laboratory)} patients")
