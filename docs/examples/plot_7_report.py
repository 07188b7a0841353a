"""
Why is it abnormal? Regions, explanations and a report
======================================================

An alarm that nobody can explain is an alarm that nobody trusts. Which patch was it, and
with which normal patch was it compared?
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from sklearn.metrics import RocCurveDisplay

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.plotting import ScoreHistogramDisplay
from skpatchsvdd.report import write_report

train = make_textures(16, kind="gear", image_size=128, random_state=0)
test = make_textures(
    8, kind="gear", image_size=128, anomaly_fraction=0.5, random_state=1
)
est = PatchSVDD(max_iter=0, random_state=0).fit(train.images)  # 0: in seconds

# %%
# Scores of new images over those of training, and how well both kinds part.

fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
ScoreHistogramDisplay.from_estimator(est, test.images, test.labels, ax=axes[0])
abnormality = -est.score_samples(test.images)
RocCurveDisplay.from_predictions(test.labels, abnormality, pos_label=-1, ax=axes[1])

# %%
# The most abnormal image, its regions, and for the highest region the patches over it
# beside the normal patches nearest to them.

worst = int(est.score_samples(test.images).argmin())
image = test.images[worst]
print(est.predict_regions([image])[0])
matches = est.explain([image])[0][0]

fig, axes = plt.subplots(len(matches), 2, figsize=(5, 5), layout="constrained")
for row, match, size in zip(axes, matches, est.patch_sizes_, strict=True):
    patch = image[match["top"] : match["bottom"], match["left"] : match["right"]]
    normal = train.images[match["image"]][
        match["image_top"] : match["image_bottom"],
        match["image_left"] : match["image_right"],
    ]
    row[0].imshow(patch)
    row[0].set_title(f"patch of {size} pixels")
    row[1].imshow(normal)
    row[1].set_title(f"nearest, of image {match['image']}")
    for ax in row:
        ax.set_axis_off()

# %%
# For all images at once there is a page, to be opened in a browser. On the command line
# ``skpatchsvdd inspect`` writes it.

with tempfile.TemporaryDirectory() as folder:
    page = Path(folder) / "report.html"
    write_report(est, test.images, page, y=test.labels)
    print(f"{page.stat().st_size / 1e6:.1f} MB")
