"""What was found in images, as tables of pandas."""

import numpy as np


def import_pandas():
    """Return pandas, or say how to install it."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("as_frame=True needs pandas: pip install pandas") from error
    return pandas


def make_frames(results, files):
    """Return two data frames of the results of an inspection: images, and regions.

    With the names of the columns of results.csv. A region's `image` is the row of its
    image in the first one.
    """
    pd = import_pandas()
    images = pd.DataFrame(
        {
            "file": pd.Series(files, dtype=object),
            "verdict": np.where(results.labels == -1, "abnormal", "normal"),
            "score": results.scores,
            "p_value": results.p_values,
            "n_regions": [len(x) for x in results.regions],
        }
    )
    found = pd.DataFrame(np.concatenate(results.regions))
    found.insert(0, "image", np.repeat(np.arange(len(images)), images["n_regions"]))
    if "names" in results:
        names = np.concatenate(results.names)
        found["kind"], found["kind_distance"] = names["kind"], names["distance"]
        highest = found.groupby("image")[["kind", "kind_distance"]].first()
        images = images.join(highest)
    return images, found
