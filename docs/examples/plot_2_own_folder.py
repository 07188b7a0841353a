"""
A folder of pictures
====================

From files of several sizes and formats to a list of the least normal ones, and to
verdicts on new files. The first part only makes such files; with pictures of your own,
begin at :func:`~skpatchsvdd.datasets.load_images`.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_images, make_textures
from skpatchsvdd.plotting import AnomalyMapDisplay

# %%
# Pictures of wood, some PNG and some JPEG, of 96 to 120 pixels. A picture with a stain
# has got among the good ones, as happens.

folder = TemporaryDirectory()
good_folder = Path(folder.name, "good")
new_folder = Path(folder.name, "new")


def save(images, names, target):
    """Write images of unequal size in the format that each name asks for."""
    target.mkdir()
    for i, (image, name) in enumerate(zip(images, names, strict=True)):
        size = 96 + 8 * (i % 4)
        Image.fromarray(image).resize((size, size)).save(target / name)


wood = make_textures(17, image_size=112, kind="wood", random_state=0).images
stained = wood[16].copy()
stained[30:60, 40:75] //= 3
endings = [".png", ".jpg"] * 8
names = [f"part_{i:02d}{ending}" for i, ending in enumerate(endings)]
save([*wood[:16], stained], [*names, "part_16.png"], good_folder)

new = make_textures(
    6, image_size=112, kind="wood", anomaly_fraction=0.5, random_state=5
)
save(new.images, [f"{i}_{x}.png" for i, x in enumerate(new.defects)], new_folder)

# %%
# Reading
# -------
# ``image_size`` resizes all of them. Files that are no images are listed in
# ``skipped``. ``load_images(..., as_paths=True)`` returns paths instead of pixels,
# which the estimator reads batch by batch: for more images than memory holds.

good = load_images(good_folder, image_size=96)
print(good.images.shape, good.images.dtype, good.skipped)

# %%
# Which of the good ones look least normal?
# -----------------------------------------
# Each training image is scored as if it had not been one. The lowest scores come first.

est = PatchSVDD(patch_size=32, max_iter=0, random_state=0).fit(good.images)
odd = np.argsort(est.training_scores_)[:3]
for i in odd:
    print(f"{est.training_scores_[i]:8.5f}  {Path(good.filenames[i]).name}")

titles = [Path(good.filenames[i]).name for i in odd]
AnomalyMapDisplay.from_estimator(est, good.images[odd], titles=titles)

# %%
# A defect among the good images teaches the model that it is normal, and here it also
# sets the threshold, which is the lowest score. So what is defective is taken out, and
# the model fitted again.

kept = [i for i, name in enumerate(good.filenames) if "part_16" not in name]
est.fit(good.images[kept])

# %%
# New pictures
# ------------
# ``inspect`` computes scores, p-values, labels, maps, masks and regions in one pass.

new = load_images(new_folder, image_size=96)
results = est.inspect(new.images)
for name, label, p, regions in zip(
    new.filenames, results.labels, results.p_values, results.regions, strict=True
):
    verdict = "normal" if label == 1 else "abnormal"
    print(f"{Path(name).name:18} {verdict:9} p {p:.3f}  {len(regions)} regions")

folder.cleanup()

# %%
# Sixteen pictures are few: no p-value can be below 1 / 17, and about one in 17 normal
# images raises an alarm. The same from a shell, at the default settings:
#
# .. code-block:: console
#
#     skpatchsvdd fit good/ -o part.model
#     skpatchsvdd inspect part.model new/ -o results
