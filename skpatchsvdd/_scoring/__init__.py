"""From images to maps, regions and scores."""

from skpatchsvdd._scoring.explain import explain
from skpatchsvdd._scoring.fitted import (
    EncodedImages,
    FitContext,
    NormalImages,
    build_bank,
    drop_images,
    encode_images,
    extend_bank,
    foretell,
    join_fitted,
    score_encoded,
    score_rows,
)
from skpatchsvdd._scoring.frames import import_pandas, make_frames
from skpatchsvdd._scoring.inspect import (
    DeviceBank,
    FittedBank,
    encode_each,
    find_decisive,
    inspect_images,
    inspect_new,
    make_maps,
    score_images,
    score_memorized,
)
from skpatchsvdd._scoring.joining import check_copies, find_added
from skpatchsvdd._scoring.maps import Found, find_covering, read_distances, resize_map
from skpatchsvdd._scoring.regions import DAMAGED, find_regions, resize_regions
