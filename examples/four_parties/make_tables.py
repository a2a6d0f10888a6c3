"""Write the tables of four organizations with partly the same patients, and the labels.

The data are scikit-learn's own copy of the Wisconsin breast cancer table (569 patients).
"""

import numpy as np
from sklearn.datasets import load_breast_cancer

data = load_breast_cancer(as_frame=True)
table = data.data.set_axis([f"patient {i}" for i in range(len(data.data))])
table.index.name = "patient"
rng = np.random.default_rng(0)
names = ("hospital", "imaging", "laboratory", "registry")
columns = dict(zip(names, np.array_split(table.columns, 4), strict=True))
for number, (name, own) in enumerate(columns.items()):
    part = table[list(own)].mask(rng.random((len(table), len(own))) < 0.1 * number)
    part.sample(frac=1 - 0.05 * number, random_state=number).to_csv(f"{name}.csv")
labels = data.target.map({0: "malignant", 1: "benign"}).set_axis(table.index)
labels.rename("diagnosis").to_csv("labels.csv")
