"""The figures that the paper prints, to stand beside ours.

From J. Yi and S. Yoon, "Patch SVDD: Patch-level SVDD for Anomaly Detection and
Segmentation", Asian Conference on Computer Vision, 2020. All are areas under the ROC
curve of images (det) and of pixels (seg) on MVTec AD; "mean" is that of its 15 classes.
The paper's curves over lambda, the feature length and the intrinsic dimension are
pictures without numbers.
"""

MEAN = "mean"


def make_figures(table, names=("det", "seg")):
    """Name the columns of a table: class -> {"det": ..., "seg": ...}."""
    return {key: dict(zip(names, values, strict=True)) for key, values in table.items()}


def add_mean(figures):
    """Add the mean over all classes, where the paper prints none."""
    rows = list(figures.values())
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    return figures | {MEAN: mean}


# Per class, and the average as the paper's table of methods has it.
PATCH_SVDD = make_figures(
    {
        "bottle": (0.986, 0.981),
        "cable": (0.903, 0.968),
        "capsule": (0.767, 0.958),
        "carpet": (0.929, 0.926),
        "grid": (0.946, 0.962),
        "hazelnut": (0.920, 0.975),
        "leather": (0.909, 0.974),
        "metal_nut": (0.940, 0.980),
        "pill": (0.861, 0.951),
        "screw": (0.813, 0.957),
        "tile": (0.978, 0.914),
        "toothbrush": (1.000, 0.981),
        "transistor": (0.915, 0.970),
        "wood": (0.965, 0.908),
        "zipper": (0.979, 0.951),
        MEAN: (0.921, 0.957),
    }
)

# Random encoder, raw patches, and the autoencoder, of which only pixels are rated.
_RANDOM_RAW_AUTOENCODER = {
    "bottle": (0.89, 0.80, 0.92, 0.82, 0.91),
    "cable": (0.56, 0.70, 0.57, 0.84, 0.73),
    "capsule": (0.67, 0.93, 0.67, 0.94, 0.79),
    "carpet": (0.42, 0.66, 0.48, 0.74, 0.54),
    "grid": (0.75, 0.61, 0.83, 0.76, 0.96),
    "hazelnut": (0.83, 0.93, 0.83, 0.95, 0.98),
    "leather": (0.69, 0.85, 0.69, 0.88, 0.75),
    "metal_nut": (0.37, 0.79, 0.52, 0.89, 0.88),
    "pill": (0.72, 0.92, 0.77, 0.92, 0.89),
    "screw": (0.69, 0.93, 0.56, 0.93, 0.98),
    "tile": (0.68, 0.54, 0.70, 0.51, 0.48),
    "toothbrush": (0.81, 0.95, 0.92, 0.97, 0.97),
    "transistor": (0.53, 0.88, 0.68, 0.92, 0.91),
    "wood": (0.90, 0.74, 0.94, 0.78, 0.63),
    "zipper": (0.70, 0.84, 0.94, 0.92, 0.68),
}
RANDOM_ENCODER = add_mean(
    make_figures({key: row[:2] for key, row in _RANDOM_RAW_AUTOENCODER.items()})
)
RAW_PATCHES = add_mean(
    make_figures({key: row[2:4] for key, row in _RANDOM_RAW_AUTOENCODER.items()})
)
AUTOENCODER = make_figures(
    {key: row[4:] for key, row in _RANDOM_RAW_AUTOENCODER.items()}, names=("seg",)
) | {MEAN: {"seg": 0.804}}

DEEP_SVDD = {MEAN: {"det": 0.592}}
SVDD_LOSS = {MEAN: {"det": 0.703, "seg": 0.832}}
SVDD_PRIME_LOSS = {MEAN: {"det": 0.739, "seg": 0.880}}
FLAT_64 = {MEAN: {"det": 0.810, "seg": 0.879}}
HIERARCHICAL_64 = {MEAN: {"det": 0.894, "seg": 0.932}}
HIERARCHICAL_32 = {MEAN: {"det": 0.902, "seg": 0.957}}
# RTX 2080 Ti and i7-5930K, with the approximate search of NGT.
INSPECTION = {MEAN: {"s an image": 0.48}}
