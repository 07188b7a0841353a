"""What people have said of images, as a layer over scoring."""

from skpatchsvdd._feedback.defect_patches import learn_defects, measure_again
from skpatchsvdd._feedback.feedback import Feedback
from skpatchsvdd._feedback.known_defects import DefectBank, KnownDefects
from skpatchsvdd._feedback.naming import name_masks
from skpatchsvdd._feedback.updates import (
    apply_feedback,
    apply_update,
    check_apart,
    find_update,
    join_feedback,
    take_defective,
)
