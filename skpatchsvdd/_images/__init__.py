"""What comes in: images, their files, digests and labels."""

from skpatchsvdd._images.arrays import (
    COARSE_PIXELS,
    FULL,
    as_array,
    as_images,
    check_image_size,
    check_images,
    list_images,
    read_display,
)
from skpatchsvdd._images.files import (
    ChangedFileError,
    ImageFileError,
    find_max_pixels,
    limited_pixels,
    read_bytes,
    read_image,
    read_shape,
)
from skpatchsvdd._images.folders import ENDINGS, find_all_files, find_files
from skpatchsvdd._images.labels import (
    NORMAL_NAMES,
    UNKNOWN_KIND,
    Defects,
    check_defects,
    check_is_list,
    check_labels,
    check_roi,
    enlarge_roi,
    find_normal,
    read_labels,
)
from skpatchsvdd._images.stack import (
    ImageStack,
    KnownImages,
    digest_images,
    list_digests,
    pixels_to_float,
    resize_image,
    resize_images,
    stack_images,
)
