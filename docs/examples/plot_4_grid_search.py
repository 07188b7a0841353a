"""
A search over lambda and the length of features
===============================================

:class:`~sklearn.model_selection.GridSearchCV` needs folds that train on normal images
alone: :class:`~skpatchsvdd.model_selection.NormalOnlyKFold`.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.model_selection import NormalOnlyKFold

# %%
# Images of 48 pixels, and two steps of training: enough to show the calls, far too
# little for the figures to mean anything. ``y`` is 1 for normal images and -1 for
# abnormal ones.

data = make_textures(12, image_size=48, anomaly_fraction=0.5, random_state=0)
X, y = data.images, data.labels
est = PatchSVDD(patch_size=32, max_iter=2, random_state=0)

# %%
# Every fold trains on normal images and is tested on the normal images it left out and
# on its part of the abnormal ones.

folds = NormalOnlyKFold(2, shuffle=True, random_state=0)
for train, test in folds.split(X, y):
    print("trains on", y[train], "is tested on", y[test])

# %%
# The search itself. So short a training often fails by the estimator's own check, with
# a warning; it is silenced here, and should not be elsewhere.

grid = {"lam": [0.03, 0.3], "embedding_dim": [8, 16]}
search = GridSearchCV(est, grid, scoring="roc_auc", cv=folds, error_score="raise")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    search.fit(X, y)

for parameters, score in zip(
    search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
):
    print(parameters, f"{score:.3f}")

# %%
# The same as a picture.

scores = search.cv_results_["mean_test_score"].reshape(2, 2)  # by embedding_dim, lam
figure, axis = plt.subplots(figsize=(4, 3), layout="constrained")
image = axis.imshow(scores, cmap="viridis")
axis.set_xticks([0, 1], labels=grid["lam"])
axis.set_yticks([0, 1], labels=grid["embedding_dim"])
axis.set(xlabel="lam", ylabel="embedding_dim")
figure.colorbar(image, label="area under the ROC curve")

# %%
# To the refit at the end the images labelled -1 are known defects.

best = search.best_estimator_
print(best.lam_, best.embedding_dim, len(best.training_scores_), np.sum(y == 1))

# %%
# Without abnormal images, :class:`~skpatchsvdd.model_selection.SyntheticDefectScorer`
# in place of ``"roc_auc"`` makes up defects: see :ref:`choosing`.
