"""Write the tables of a clinic and a laboratory, and the coordinator's labels.

The data are scikit-learn's own copy of the Wisconsin breast cancer table (569 patients).
"""

import numpy as np
from sklearn.datasets import load_breast_cancer

data = load_breast_cancer(as_frame=True)
table = data.data.set_axis([f"patient {i}" for i in range(len(data.data))])
table.index.name = "patient"
rng = np.random.default_rng(0)
means = [name for name in table if name.startswith("mean")]
clinic, laboratory = table[means], table.drop(columns=means)
laboratory = laboratory.mask(rng.random(laboratory.shape) < 0.2)
clinic.sample(frac=0.9, random_state=1).to_csv("clinic.csv")
laboratory.sample(frac=0.8, random_state=2).to_csv("laboratory.csv")
labels = data.target.map({0: "malignant", 1: "benign"}).set_axis(table.index)
labels.rename("diagnosis").to_csv("labels.csv")
