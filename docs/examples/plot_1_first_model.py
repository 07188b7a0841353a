"""
A first model
=============

Learn what is normal from normal images, then say which others are abnormal, and where.
"""

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc
from skpatchsvdd.plotting import AnomalyMapDisplay

# %%
# Sixteen images of wood without defects to learn from. Of eight others, half have a
# defect; their masks say where.

train = make_textures(16, image_size=96, kind="wood", random_state=0)
test = make_textures(
    8, image_size=96, kind="wood", anomaly_fraction=0.5, random_state=1
)
print(train.images.shape, test.defects)

# %%
# Fitting trains an embedding of features that come with the package, in seconds.

est = PatchSVDD(random_state=0).fit(train.images)

# %%
# As in all of scikit-learn, a high score is normal, and ``predict`` gives 1 for normal
# images and -1 for abnormal ones. By default the threshold is the lowest score of the
# training images, each scored without its own patches.

scores = est.score_samples(test.images)
labels = est.predict(test.images)
for defect, score, label in zip(test.defects, scores, labels, strict=True):
    print(f"{defect:12} {score:8.5f}  {'normal' if label == 1 else 'abnormal'}")

# %%
# An anomaly map has a value for each pixel, and there high is abnormal. The threshold
# is the middle of the colours. The outlines are those of the true masks.

AnomalyMapDisplay.from_estimator(
    est, test.images[3:7], masks=test.masks[3:7], titles=list(test.defects[3:7])
)

# %%
# Where labels and masks are known, the areas under the ROC curve of images and of
# pixels can be measured.

print(f"images {detection_auroc(test.labels, scores):.3f}")
print(f"pixels {segmentation_auroc(test.masks, est.anomaly_map(test.images)):.3f}")
