"""
Where to draw the line
======================

A threshold promises how many normal images raise an alarm. Four ways to choose it:
``false_alarm_rate`` before fitting, p-values and another rate after it, ``groups``
where images belong together.
"""

import matplotlib.pyplot as plt
import numpy as np

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures

train = make_textures(39, image_size=64, kind="wood", random_state=0).images
test = make_textures(
    16, image_size=64, kind="wood", anomaly_fraction=0.5, random_state=1
)
settings = {"patch_size": 32, "max_iter": 0, "embedding_dim": 32, "random_state": 0}

# %%
# Before fitting
# --------------
# With 39 images, "auto" promises about one false alarm in 40 new normal images, and
# ``false_alarm_rate=0.1`` one in ten. The encoder is the same; only the offset moves.

auto = PatchSVDD(**settings).fit(train)
tenth = PatchSVDD(false_alarm_rate=0.1, **settings).fit(train)
scores = auto.score_samples(test.images)
normal = test.labels == 1
for name, offset in [("auto", auto.offset_), ("0.1", tenth.offset_)]:
    alarms = scores < offset
    false, found = alarms[normal].sum(), alarms[~normal].sum()
    print(f"{name:4}  offset {offset:8.5f}  false {false} of 8, found {found} of 8")

# %%
# Each point is an image. Left of a line it is abnormal.

rows = {
    "training images": auto.training_scores_,
    "new, normal": scores[normal],
    "new, abnormal": scores[~normal],
}
figure, axis = plt.subplots(figsize=(7, 2.5), layout="constrained")
for i, values in enumerate(rows.values()):
    axis.scatter(values, np.full(len(values), i), alpha=0.5)
axis.axvline(auto.offset_, color="black", label="auto")
axis.axvline(tenth.offset_, color="black", linestyle="dashed", label="0.1")
axis.set_xscale("symlog", linthresh=0.001)
axis.set_xlim(2 * scores.min(), auto.training_scores_.max() / 1.2)
axis.set_yticks(range(len(rows)), labels=list(rows))
axis.set(xlabel="score, high is normal", ylim=(2.5, -0.5))
_ = axis.legend(title="false_alarm_rate", loc="lower left")

# %%
# After fitting
# -------------
# A p-value is the fraction of normal images that look at least as abnormal, about. An
# alarm at ``p_values <= a`` is false for about a fraction a of normal images, for any a
# down to 1 / (n + 1).

p_values = auto.p_values(test.images)
for a in (0.025, 0.05, 0.1, 0.2):
    alarms = p_values <= a
    false, found = alarms[normal].sum(), alarms[~normal].sum()
    print(f"a {a:5}  false {false} of 8, found {found} of 8")

# %%
# ``false_alarm_rate`` does the same for pixels: the larger, the larger the masks, and
# the more normal images have a marked pixel. Printed are the fractions of all pixels
# that are marked.

for rate in (0.025, 0.1, 0.3):
    masks = auto.predict_mask(test.images, false_alarm_rate=rate)
    with_defect, without = masks[~normal].mean(), masks[normal].mean()
    print(f"rate {rate:5}  with a defect {with_defect:.3f}, without {without:.3f}")

# %%
# Images that belong together
# ---------------------------
# Pictures of eight lots, each with a contrast of its own. A promise about new lots has
# to come from lots as a whole: each image is scored without the patches of its own lot.
# Eight lots allow p-values down to 1 / 9, however many pictures there are of each.

rng = np.random.RandomState(0)
lots = np.repeat(np.arange(8), 5)
images = make_textures(40, image_size=64, kind="wood", random_state=2).images / 255
contrast = rng.uniform(0.6, 1, 8)[lots][:, None, None, None]
images = (0.5 + contrast * (images - 0.5)).astype(np.float32)

by_lot = PatchSVDD(**settings).fit(images, groups=lots)
print(f"lowest p-value possible: 1 / 9 = {1 / 9:.3f}")
p_values = by_lot.p_values((test.images / 255).astype(np.float32))
print(f"lowest p-value of the test images: {p_values.min():.3f}")
means = [by_lot.training_scores_[lots == lot].mean() for lot in range(8)]
print("mean score of each lot:", np.round(means, 5))

# %%
# More in :ref:`thresholds`, also on what happens when the images change later.
