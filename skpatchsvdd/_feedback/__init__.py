"""What people have said of images, as a layer over scoring."""

from skpatchsvdd._feedback.feedback import Feedback
from skpatchsvdd._feedback.known_defects import DefectBank, KnownDefects
from skpatchsvdd._feedback.naming import name_masks
from skpatchsvdd._feedback.updates import (
    add_defects,
    apply_update,
    check_apart,
    check_forgotten,
    find_update,
    hold_out,
    keep_feedback,
    take_defective,
    warn_of_contradictions,
)
