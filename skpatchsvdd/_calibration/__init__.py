"""From the scores of normal images to thresholds and p-values."""

from skpatchsvdd._calibration.calibration import (
    Calibration,
    are_tied,
    check_scores,
    count_abnormality,
    p_values_from_scores,
    threshold_from_scores,
    warn_of_collapse,
)
from skpatchsvdd._calibration.groups import (
    check_groups,
    check_more_groups,
    check_n_groups,
    find_twins,
    number_owners,
    split_groups,
    warn_of_twins,
)
from skpatchsvdd._calibration.labelled import check_costs
