"""The estimator: parameters, fit in five steps, scores and maps."""

import os
import reprlib
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from numbers import Integral, Real

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin, _fit_context
from sklearn.exceptions import NotFittedError
from sklearn.utils import Bunch, check_random_state
from sklearn.utils._param_validation import Interval, Options, RealNotInt, StrOptions
from sklearn.utils.validation import check_is_fitted

from skpatchsvdd._calibration import (
    Calibration,
    are_tied,
    check_costs,
    check_groups,
    check_more_groups,
    check_n_groups,
    check_scores,
    find_twins,
    number_owners,
    split_groups,
    warn_of_collapse,
    warn_of_twins,
)
from skpatchsvdd._encoding import (
    DEFAULT_STRIDES,
    DenseSetting,
    check_strides,
    make_detail,
    make_pretrained,
    remembering,
)
from skpatchsvdd._export import export_onnx
from skpatchsvdd._feedback import (
    Feedback,
    add_defects,
    apply_update,
    check_apart,
    check_forgotten,
    find_update,
    hold_out,
    keep_feedback,
    name_masks,
    take_defective,
    warn_of_contradictions,
)
from skpatchsvdd._images import (
    FULL,
    check_defects,
    check_images,
    check_roi,
    digest_images,
    list_digests,
)
from skpatchsvdd._learnt import (
    describe_learnt,
    on_snapshot,
    set_learnt,
    show_learnt,
    take_snapshot,
)
from skpatchsvdd._parameters import make_inspection, make_training, resolve_options
from skpatchsvdd._scoring import (
    FitContext,
    NormalImages,
    build_bank,
    check_copies,
    drop_images,
    explain,
    find_added,
    foretell,
    import_pandas,
    inspect_images,
    join_fitted,
    make_frames,
    make_maps,
    resize_map,
    resize_regions,
    score_images,
    score_memorized,
)
from skpatchsvdd._screening import (
    MIN_IMAGES,
    count_set_aside,
    find_defective,
    list_suspects,
    measure_plausibility,
    warn_of_newcomers,
    warn_of_suspects,
)
from skpatchsvdd._storage import load_estimator, save_estimator
from skpatchsvdd._training import (
    describe_training,
    resume_from,
    train_encoder,
    undo_training,
)
from skpatchsvdd._utils import (
    CallbackSupportMixin,
    Report,
    TrainingKept,
    check_device,
    computes,
    fallback_device,
    map_in_threads,
    normal_mode,
    open_report,
    warn,
)
from skpatchsvdd.drift import DriftResult, drift_test

# The parameters that are objects, or names of some.
_MAKERS = {"training": make_training, "inspection": make_inspection}
# What dense training subtracts from images on the 0..1 scale.
_MID_GREY = 0.5


class PatchSVDD(CallbackSupportMixin, OutlierMixin, BaseEstimator):
    r"""Patch SVDD: detect and locate anomalies in images, learnt from normal images.

    A network that comes with the package, pretrained on procedural images and on no
    photograph, turns patches into features. `fit` trains an embedding of these without
    labels: patches a pixel or two apart are pulled together, while a classifier must
    recognise, from the embedded features of two patches that overlap in part, in which
    direction one lies from the other [1]_:

    .. math:: L = \lambda \, L_{SVDD'} + L_{SSL}.

    By default a third term pushes patches with synthetic defects away from the others.

    The features of all training patches form a memory bank. The score of a patch of a
    new image is the distance to its nearest neighbour in the bank, the score of a pixel
    is the mean over the patches that cover it, and an image is as abnormal as its most
    abnormal pixels. By default distances count both as they are and relative to the
    local normal variation: an edge never looks the same twice, and may lie farther from
    its like than an even ground. In aligned images the position of a patch counts too.

    Read more in the :ref:`user guide <user_guide>`.

    Parameters
    ----------
    lam : float or None, default=None
        The paper's :math:`\lambda \ge 0`, the weight of :math:`L_{SVDD'}`. None is 0.3,
        and 1e-3 with ``training="paper"``, where a large one pulls all features of
        uniform images to one point. A grid search with
        :class:`~skpatchsvdd.model_selection.SyntheticDefectScorer` chooses it without
        labels.
    embedding_dim : int, default=64
        The paper's D, the length of an embedded feature. At most 64 with
        ``encoder="procedural"``, where a smaller one keeps the axes along which the
        features of X vary most. Beside other encoders these are not embedded.
    encoder : str, torch.nn.Module or list of both, default="auto"
        What makes features of patches. "procedural" is the network pretrained on
        procedural images, for patches of 8 to 64 pixels; alone, its features are
        embedded by a training on X, see :ref:`embedding`. "hierarchical" is the
        paper's, trained on X from random weights: it builds the feature of a patch from
        those of its quarters. A module of your own maps images, (n, channels, height,
        width) in 0..1, to a feature map or a list of them, each of which is a scale;
        `fit` works with a frozen copy, see :ref:`pretrained`. "auto" is "procedural",
        and with ``training="paper"`` "hierarchical".
    training : {"dense", "paper"} or Training, default="dense"
        How the encoder is trained. "dense" encodes crops of images as whole maps, in
        two views under different light, one with synthetic defects. "paper" is the
        paper's training, on pairs of patches; it needs many more steps. A
        :class:`~skpatchsvdd.Training` sets the loss, the sizes of steps and batches,
        and more.
    patch_size : {32, 64, 128}, default=64
        K, the size of the largest patches of "hierarchical"; all smaller scales down to
        32 are inspected too. "procedural" has 8, 16, 32 and 64, of which those that
        fit into the images are inspected.
    strides : tuple of int, default=None
        Pixels from one patch to the next, for each scale, smallest scale first. None is
        4, 16, 16 for the scales 32, 64, 128. "procedural" takes None alone, which is
        8, 8, 16, 16 for the scales 8, 16, 32, 64.
    image_size : int, (int, int) or "full", default=None
        Size (height, width) to which every image is resized first, with anti-aliasing.
        None keeps the size: a photograph of 4000 x 3000 takes a CPU minutes, one of
        576 x 768 seconds. "full", for photographs with small defects, looks at both: at
        each image reduced to about as many pixels, in which `inspected_shape_` and
        masks are counted, and at small patches of all of its pixels, see :ref:`full`.
    roi : array-like of shape (height, width), default=None
        A mask, one for all images, of the size in which they come in, or of
        `image_size`. Pixels where it is 0, and those that resizing would mix with them,
        are not seen: patches that hold no others are neither trained on nor compared,
        and the anomaly map is 0 there. None looks at all pixels.
    max_iter : "auto" or int, default="auto"
        Optimisation steps. With 0 the features of "procedural", alone, are half
        whitened by those of X, see :ref:`embedding`, and "hierarchical" keeps its
        random weights. "auto" is 200 with "procedural"; with "hierarchical" 1000 on a
        GPU and 240 on a CPU; 12000 with ``training="paper"``, whose authors take
        ``300 * 100 * n_images / 64`` steps.
    early_stopping : bool, default=False
        Whether to hold out a tenth of the images, or the `validation_fraction` of a
        :class:`~skpatchsvdd.Training`, check up to a dozen times how well synthetic
        defects on them are separated from changes of light, stop after four checks
        without improvement, and keep the best weights. Without it the final weights are
        kept, unless they have collapsed or do worse than the initial ones: then the
        best of both are kept, with a warning.
    warm_start : bool, default=False
        Whether `fit` continues from the weights in `encoder_`, or from those of a later
        `fit` that was interrupted after its training, and builds a new bank.
    bank_size : int, float in (0, 1] or None, default=None
        Number or fraction of the normal patches of each scale that are kept, for a
        faster search and a smaller file. The next one kept is always the one farthest
        from those kept so far (greedy k-centre). They are chosen in ten folds of the
        images, and a training image is scored without its fold. None keeps everything
        up to 1 GiB a scale, which is four million patches, and a covering part beyond.
    neighbors : {"auto", "exact", "pynndescent"}, default="auto"
        How the nearest normal patch is found; scores and maps are the same. "exact",
        which "auto" is, skips clusters of patches that cannot hold it. "pynndescent"
        first asks that package for a near one, on a CPU. It compiles for about a minute
        in each process, and has not been found to save time, see
        :ref:`memory_and_speed`.
    inspection : {"default", "paper"} or Inspection, default="default"
        How scores are read. "default" counts positions where images are aligned, and
        distances relative to local normal variation, and takes the mean of the largest
        pixels. "paper", which "default" is with ``training="paper"``, takes distances
        as they are, and the largest pixel. An :class:`~skpatchsvdd.Inspection` sets
        each of these by hand.
    false_alarm_rate : "auto" or float in (0, 0.5], default="auto"
        Where `predict` draws the line. Every training image is scored against a bank
        that does not hold it. "auto" sets `offset_` to the lowest of these n scores: a
        new normal image raises a false alarm with a probability of about 1 / (n + 1).
        A float sets it to the k-th lowest, so that at most this fraction of new normal
        images is called abnormal, and k - 1 of the training images. Both hold for
        images taken as the training images were; with `groups`, see `fit`, for images
        of new groups, and after `calibrate` for images taken as those of `calibrate`.
    contamination : "auto" or float in [0, 0.5], default=0
        How many of the normal images may be defective all the same, see
        :ref:`contamination`. 0 learns from all of them, and a warning names those that
        look defective. A fraction sets so many aside, the least plausible ones, as if
        they were not in X. "auto" sets aside those that the other images do not vouch
        for, at most about half. Needs five images, or does nothing with "auto". If all
        n that are set aside were normal, the rate of false alarms is higher by
        n / (1 + n_images) at most.
    device : str, default="auto"
        "auto" (CUDA if there is a GPU, else the CPU), "cpu", "cuda", "cuda:1" or "mps".
        Without the device that it was fitted on, an estimator scores on the CPU.
    n_jobs : int, default=None
        Threads of torch on the CPU, and of building pynndescent's index. None leaves
        the choice to them.
    random_state : int, RandomState instance or None, default=None
        Seed of the initial weights and of all random draws. With the same seed, on the
        same machine with the same number of threads, `fit` gives the same weights and
        scores to the last bit. Other processors draw the same and round differently,
        which the training of encoders other than "procedural" amplifies.
    verbose : int, default=0
        1 reports each step of `fit`, 2 also the losses during training; see also the
        :ref:`user guide <progress>` on callbacks.

    Attributes
    ----------
    encoder_ : torch.nn.Module
        The encoder, on the CPU; if there are several, ``encoder_.members``.
        ``encoder_(patches)`` maps (n, channels, K, K) to (n, D).
    lam_ : float
        The weight that was used.
    offset_ : float
        ``decision_function(X) = score_samples(X) - offset_``.
    fixed_threshold_ : float or None
        The `offset_` that `tune_threshold` or `fix_threshold` has set. None if it
        comes from `false_alarm_rate`.
    training_scores_ : ndarray of shape (n_images,)
        Score of each training image against the bank without its own patches; with
        `groups` or `twins_`, without those of all images of its group. High is normal:
        look at the lowest ones before you trust the training set.
    calibrates_ : ndarray of bool of shape (n_images,)
        Which of these scores `offset_` and `p_values` are computed from. All without
        `groups`; with them, those of the groups that the encoder was not trained on;
        none after `calibrate`.
    suspects_ : named tuple
        The images of `fit` that were set aside, and those that look defective, least
        plausible first: ``indices`` in X; ``p_values``, how plausible they are among
        the images that were learnt from; ``is_set_aside``; ``files``, paths or None.
    groups_ : ndarray of shape (n_images,) or None
        The group of each training image, if `fit` was given groups; None for corrected
        images, which have no label.
    twins_ : ndarray of int of shape (n_images,) or None
        A label of each training image, the same for those that look like pictures of
        one piece, which are left out together. None if `fit` has found none, or was
        given groups.
    calibration_scores_ : ndarray of shape (n_calibrating,)
        The scores that `offset_` and `p_values` are computed from:
        ``training_scores_[calibrates_]``, or those of the images of `calibrate`.
    calibration_groups_ : ndarray of shape (n_calibrating,) or None
        The group of each of them; each group counts the same. None if each image is its
        own.
    usual_distances_ : dict of ndarray of shape (n_images, n_each), or None
        By scale, how far some patches of training images are from the nearest patch of
        another image. None with ``relative_weight=0``, as the paper's.
    roi_ : ndarray of bool of shape (height, width) or None
        The pixels that are looked at, at the size at which images are inspected.
    training_files_ : list of str or None
        The path of each training image, None for those that did not come as files.
    training_digests_ : list of str
        By which the training images are recognised: equal for equal pixels.
    center_ : ndarray of shape (height, width, n_channels) or (1, 1, 1)
        What is subtracted from every image: 0.5, the middle of the 0..1 scale, or, with
        ``training="paper"``, the mean training image.
    inspected_shape_ : tuple of (height, width, n_channels)
        Shape of the images as they are inspected.
    patch_sizes_, strides_ : tuple of int
        The scales inspected, those of the trained encoder first, and their strides.
    scales_ : tuple of int or str
        The name of each scale: its patch size, or, where several encoders may have that
        size, with the encoder: "procedural.32", beside "hierarchical", and
        "module0.map0", "module0.map1" and so on for a module.
    bank_size_ : dict of int or str to int
        Number of normal patches kept, by scale.
    defect_kinds_ : ndarray of str of shape (n_defective,)
        What each image of a known defect shows: its name, or "defect".
    defect_bank_size_ : dict of int or str to int
        Number of patches of known defects, by scale.
    loss_curve_ : dict of str to ndarray of shape (n_steps,)
        Every loss term at every step, unweighted: "position_16", "svdd_16",
        "damage_16" and so on, by patch size. Tasks of weight 0 are not among them.
    n_iter_ : int
        Number of steps taken.
    best_iter_ : int
        The step whose weights were kept.
    validation_steps_, validation_scores_ : ndarray of shape (n_checks,)
        The steps after which training was checked, the first before any, and the area
        under the ROC curve of separating patches, or with early stopping and other
        encoders than "procedural" images, with synthetic defects from others.
    n_features_in_ : int
        Number of values in one image, as the first one came in.
    classes_ : ndarray of shape (2,)
        -1 and 1, the labels of `predict`.

    See Also
    --------
    sklearn.ensemble.IsolationForest : Outlier detection on feature vectors.
    sklearn.neighbors.LocalOutlierFactor : The same with nearest neighbours.

    Notes
    -----
    Images that the estimator was fitted on are recognised, to the last bit, and scored
    without their own patches in the bank and, with ``training="paper"``, without their
    own part in the mean image: their scores and maps are meaningful, although the
    encoder has seen them, and ``fit(X).predict(X)`` equals ``fit_predict(X)``.

    Patches begin at the top left. Where the image size less the patch size is no
    multiple of the stride, the last rows and columns, fewer than a stride, are not
    inspected and take the values of the nearest inspected pixels.

    Grey images keep one channel. The bank takes 0.6 MB for an image of 256 x 256 with
    "procedural", and 0.9 MB with "hierarchical".

    References
    ----------
    .. [1] J. Yi and S. Yoon, "Patch SVDD: Patch-level SVDD for Anomaly Detection and
       Segmentation", Asian Conference on Computer Vision, 2020.

    Examples
    --------
    >>> from skpatchsvdd import PatchSVDD
    >>> from skpatchsvdd.datasets import make_textures
    >>> train = make_textures(8, image_size=64, random_state=0)
    >>> test = make_textures(6, image_size=64, anomaly_fraction=0.5, random_state=1)
    >>> est = PatchSVDD(patch_size=32, max_iter=2, random_state=0)
    >>> est.fit(train.images).score_samples(test.images).shape
    (6,)
    >>> est.anomaly_map(test.images).shape
    (6, 64, 64)
    """

    # The training of a fit that failed later. No trailing underscore: check_is_fitted
    # would take the estimator for fitted.
    _unfinished = None

    _parameter_constraints = {  # noqa: RUF012
        "lam": [Interval(Real, 0, None, closed="left"), None],
        "embedding_dim": [Interval(Integral, 1, None, closed="left")],
        "encoder": [str, "array-like", torch.nn.Module],
        "training": "no_validation",  # `_validate_params` checks both
        "patch_size": [Options(Integral, set(DEFAULT_STRIDES))],
        "strides": ["array-like", None],
        "image_size": [
            Interval(Integral, 1, None, closed="left"),
            StrOptions({FULL}),
            "array-like",
            None,
        ],
        "roi": ["array-like", None],
        "max_iter": [StrOptions({"auto"}), Interval(Integral, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "warm_start": ["boolean"],
        "bank_size": [
            Interval(Integral, 1, None, closed="left"),
            Interval(RealNotInt, 0, 1, closed="right"),
            None,
        ],
        "neighbors": [StrOptions({"auto", "exact", "pynndescent"})],
        "inspection": "no_validation",
        "false_alarm_rate": [
            StrOptions({"auto"}),
            Interval(Real, 0, 0.5, closed="right"),
        ],
        "contamination": [
            StrOptions({"auto"}),
            Options(Real, {0}),
            Interval(Real, 0, 0.5, closed="right"),
        ],
        "device": [str],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        *,
        lam=None,
        embedding_dim=64,
        encoder="auto",
        training="dense",
        patch_size=64,
        strides=None,
        image_size=None,
        roi=None,
        max_iter="auto",
        early_stopping=False,
        warm_start=False,
        bank_size=None,
        neighbors="auto",
        inspection="default",
        false_alarm_rate="auto",
        contamination=0,
        device="auto",
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.lam = lam
        self.embedding_dim = embedding_dim
        self.encoder = encoder
        self.training = training
        self.patch_size = patch_size
        self.strides = strides
        self.image_size = image_size
        self.roi = roi
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.warm_start = warm_start
        self.bank_size = bank_size
        self.neighbors = neighbors
        self.inspection = inspection
        self.false_alarm_rate = false_alarm_rate
        self.contamination = contamination
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def get_params(self, deep=True) -> dict:
        """Return the parameters, and with `deep` those of `training` and `inspection`.

        Parameters
        ----------
        deep : bool, default=True
            Whether to list ``training__learning_rate`` and others, which `set_params`
            takes.

        Returns
        -------
        params : dict
        """
        params = super().get_params(deep=deep)
        for name, make in _MAKERS.items() if deep else ():
            with suppress(ValueError):  # of a name that `fit` will refuse
                nested = make(params[name]).get_params()
                params |= {f"{name}__{key}": x for key, x in nested.items()}
        return params

    def set_params(self, **params) -> "PatchSVDD":
        """Set parameters, among them those of `training` and `inspection`.

        Parameters
        ----------
        **params : dict
            Values by name. ``training__learning_rate`` and
            ``inspection__relative_weight``, for instance, are values of these objects;
            a name, such as "dense", becomes the object that it stands for.

        Returns
        -------
        self : PatchSVDD
        """
        for name in params:
            owner, is_nested, _ = name.partition("__")
            if is_nested and owner not in _MAKERS:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}: "
                    f"{owner!r} has no parameters. get_params() lists all names."
                )
        for name, make in _MAKERS.items():
            if any(x.startswith(f"{name}__") for x in params):
                params[name] = make(params.get(name, getattr(self, name)))
        return super().set_params(**params)

    def _validate_params(self):
        super()._validate_params()
        make_training(self.training).check()
        make_inspection(self.inspection).check()

    @_fit_context(prefer_skip_nested_validation=True)
    @computes
    def fit(self, X, y=None, groups="auto", masks=None) -> "PatchSVDD":
        """Learn from normal images what normal patches look like.

        The estimator changes only when all is done: a call that fails leaves it as it
        was. An interrupt (Ctrl-C) during training ends the training early, with a
        warning, and `fit` goes on with the weights so far; at any other time it ends
        `fit`. If that is while the bank is built, a warning says that the trained
        weights are kept: ``set_params(warm_start=True, max_iter=0).fit(X)`` goes on
        from them, also from a pickle; the next successful `fit` drops them.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            At least two normal images. uint8 is divided by 255 and uint16 by 65535;
            floats are taken as they are and should lie in about 0..1. Also a list of
            images, or of paths of image files (``pip install pillow``), of unequal size
            with `image_size`; see the :ref:`user guide <images>`. Files, and arrays
            mapped into memory, are read batch by batch.
        y : array-like of shape (n_images,) or (n_images, height, width), default=None
            Labels, 1 for normal and -1 for abnormal images, or masks. Or names: "good",
            "normal" and "ok" mean normal images, any other name is that of a kind of
            defects. The patches of abnormal images, and of those whose mask has a pixel
            that is not 0, become known defects, and the scores of what resembles these
            more than normal patches do are raised, see the :ref:`user guide
            <feedback>`. Those with a mask also fill half of the synthetic defects of
            training. Other values are an error, such as 0 and 1, which mean normal to
            some and abnormal to others. None calls all images without a mask normal.
        groups : "auto", array-like of shape (n_images,) or None, default="auto"
            Which images belong together, as tiles of one sheet, frames of one video or
            pictures of one lot do: a number or a name for each, at least two different
            ones. A random half of the groups, or all without training, are set aside
            while the encoder is trained. Their images are scored without any patch of
            their group in the bank, and `offset_` and `p_values` come from these scores
            alone; each group counts the same. All images join the bank. "auto" looks
            for images that show the same piece, if there are four or more: where a
            tenth of them or more do, they are groups when scores are computed, though
            the encoder is trained on all; a warning names them, and `twins_` has them.
            None takes each image by itself.
        masks : array-like of shape (n_images, height, width) or list, default=None
            Where abnormal images are defective: a mask for each image, not 0 at
            defective pixels, of the size in which the image comes in, or None. Of an
            abnormal image without a mask the pixels are taken where its own anomaly map
            is highest. A normal image has None, or a mask of zeros.

        Returns
        -------
        self : PatchSVDD
            The fitted estimator.
        """
        with remembering():  # images are encoded again and again
            return self._fit(X, y, groups, masks)

    def _fit(self, X, y, groups, masks):
        finds_twins = isinstance(groups, str) and groups == "auto"
        groups = None if finds_twins else groups
        images, groups, defective, places = self._check_training_images(
            X, y, groups, masks
        )
        device = check_device(self.device)
        former = self._former_training()
        options = resolve_options(self.get_params(deep=False), device)
        pretrained, strides = self._make_pretrained(images, options, device)
        roi, rng = check_roi(self.roi, images), check_random_state(self.random_state)
        everyone = self._identify(images, groups, defective)
        is_aside, p_values = self._find_defective(everyone, options, device, roi)
        normal = self._split(everyone.take(~is_aside), options, rng)
        n_tasks = 2 + options.trains + (defective is not None)  # encoding and scoring
        report = open_report(self, X, y, n_tasks)
        setting = _make_setting(normal, options, strides, device, roi)
        context = FitContext(setting, options, rng, report)
        foretell(images, pretrained, context)
        training = train_encoder(
            normal.shown_stack(), context, former, pretrained, defective
        )
        with self._kept_if_unfinished(training):
            training, fitted, calibration = self._build(
                normal, training, context, finds_twins
            )
            scores = calibration.plain
            p_values[~is_aside] = measure_plausibility(scores, scores)
            suspects = list_suspects(p_values, is_aside, places, images.files)
            if defective is not None:
                context = replace(context, encoder=training.encoder)
                fitted, calibration = add_defects(
                    defective, fitted, calibration, context
                )
            fitted = fitted.change(seen=self._list_seen(training, normal, defective))
            learnt = self._describe_fit(fitted, calibration, training, images, suspects)
        warn_of_suspects(suspects)  # which, as an error, leaves all as it was
        set_learnt(self, learnt)
        report.end()
        return self

    def _find_defective(self, normal, options, device, roi):
        """Return which images are set aside, bool, and p-values, (n_images,)."""
        n_images, n_aside = len(normal), None
        if self.contamination != "auto":
            n_aside = count_set_aside(self.contamination, n_images)
        if n_aside == 0 or n_images < MIN_IMAGES:
            return np.zeros(n_images, dtype=bool), np.ones(n_images)
        normal = replace(normal, stack=normal.stack.reduce())
        with self._report().side_progress("looking for defective images", n_images):
            return find_defective(normal, options, device, roi, n_aside)

    @_fit_context(prefer_skip_nested_validation=True)
    @computes
    def partial_fit(
        self, X, y=None, groups=None, masks=None, corrections=False
    ) -> "PatchSVDD":
        """Learn more images, without training.

        Normal images that look different from those of `fit`, as another batch of
        material does; missed defects; and normal images that raised a false alarm, see
        the :ref:`user guide <feedback>`. The encoder stays as it is: where much has
        changed, `fit` again. Of the parameters only `bank_size`, `false_alarm_rate`,
        `neighbors`, `device`, `n_jobs`, `random_state` and `verbose` are used. Nothing
        changes until all is done: other threads may score meanwhile, but not fit.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images of the shape of those of `fit`. Those that are memorized are left
            out. A known defect that is now called normal is forgotten. The reverse is
            an error: `forget` the image first, which takes it out of the bank.
        y : array-like of shape (n_images,) or (n_images, height, width), default=None
            As for `fit`: normal images join the bank, the others the known defects.
        groups : array-like of shape (n_images,), default=None
            As for `fit`; needed for normal images if, and only if, `fit` was given
            groups, and not for corrections. A label of a former group, 1 and "1" alike,
            continues it. Images of new groups calibrate.
        masks : array-like of shape (n_images, height, width) or list, default=None
            As for `fit`.
        corrections : bool or "similar", default=False
            Whether the normal images were chosen for their scores, as those that raised
            a false alarm. With True the same pictures raise none again: they score 0,
            and join neither the bank nor `training_scores_`. With "similar" they join
            both, each as a group of its own without a label, so that what looks like
            them is normal, too. In neither case do they calibrate.

        Returns
        -------
        self : PatchSVDD
            With other `bank_size_`, `training_scores_`, to which the scores of the new
            images are appended, `calibrates_`, `groups_`, `twins_`, `offset_`,
            `calibration_scores_`, `calibration_groups_`, `defect_kinds_` and
            `defect_bank_size_`. Where the bank or a known defect has changed, former
            images are scored again; of a reduced bank, their scores change as the
            distances of their kept patches do. An estimator that is not fitted yet is
            fitted; with `corrections` that is an error.
        """
        self._check_corrections(corrections)
        if not hasattr(self, "encoder_"):
            groups = "auto" if groups is None else groups
            return self.fit(X, y, groups=groups, masks=masks)
        self._validate_params()  # which scikit-learn does before a first call alone
        now = take_snapshot(self)
        images = now._check_scored_images(X)
        labels = check_defects(y, masks, images)
        if corrections or len(labels.normal) == 0:
            groups = None  # they join none
        else:
            groups = check_more_groups(groups, now.groups_, len(images))
        calibration = now._calibration.change_rate(now.false_alarm_rate)
        update = find_update(
            images, labels, groups, now._fitted, calibration, corrections
        )
        if not update:
            return self
        n_tasks = (len(update.normal) > 0) + (len(update.defective) > 0)
        report = open_report(self, X, y, n_tasks)
        context = now._make_context(report)
        if len(update.normal) and not corrections:
            now._check_newcomers(update.normal.stack, calibration)
        fitted, calibration = apply_update(now._fitted, calibration, update, context)
        check_scores(calibration.plain)
        self._set_learnt(now, fitted, calibration)
        report.end()
        return self

    def _check_corrections(self, corrections):
        """Raise if `corrections` is no such value, or there is nothing to correct."""
        if not (isinstance(corrections, bool) or corrections == "similar"):
            raise ValueError(
                f"corrections must be True, False or 'similar', got {corrections!r}."
            )
        if corrections and not hasattr(self, "encoder_"):
            raise NotFittedError(
                f"corrections={corrections!r} is for normal images that raised a "
                f"false alarm, and this {type(self).__name__} is not fitted yet. "
                "Call fit, or partial_fit without corrections, first."
            )

    def _check_newcomers(self, images, calibration):
        """Warn of images that look defective, by what has been learnt without them."""
        scores = score_images(images, self._on_device())
        p_values = measure_plausibility(scores, calibration.scores)
        warn_of_newcomers(p_values, images.files, len(calibration))

    @computes
    def forget(self, indices) -> "PatchSVDD":
        """Take training images out, as if they had never joined.

        Of images that turn out to be defective: their patches leave the bank, and their
        scores the calibration; all other images are scored again. It takes about as
        long as scoring these. The embedding stays as it was trained. To learn the
        defect, call ``partial_fit(images, y=-1, masks=...)`` afterwards.

        Parameters
        ----------
        indices : array-like of int or bool
            Which of the training images, by their places in `training_scores_` and
            `training_files_`; at least two must stay. After a `fit` that has set no
            image aside these are places in X.

        Returns
        -------
        self : PatchSVDD
            The estimator: what `partial_fit` changes has changed.
        """
        check_is_fitted(self)
        self._validate_params()
        now = take_snapshot(self)
        is_dropped = check_forgotten(indices, now._fitted, now._calibration)
        if not is_dropped.any():
            return self
        context = now._make_context(now._report())
        fitted = drop_images(now._fitted, is_dropped, context)
        calibration = now._calibration.drop(is_dropped)
        calibration = calibration.change_rate(now.false_alarm_rate)
        learnt = keep_feedback(now._fitted, fitted, calibration, context)
        self._set_learnt(now, *learnt)
        return self

    @computes
    def join(self, others) -> "PatchSVDD":
        """Let normal images that copies of this estimator have learnt join it.

        For collections that one machine is not enough for: copies learn different
        images by `partial_fit`, each on a machine of its own, see :ref:`dask`. It is as
        if `partial_fit` had been given all these images; a bank of limited size is
        chosen from what the copies have kept.

        Parameters
        ----------
        others : list of PatchSVDD
            Copies of this estimator to which `partial_fit` has added normal images, and
            no defects or corrections. An image that several have joins once. Parameters
            such as `device`, `n_jobs`, `verbose` or `bank_size` may differ.

        Returns
        -------
        self : PatchSVDD
            The estimator: what `partial_fit` changes has changed. In a reduced bank,
            scores are those that the copies gave, or follow from those of kept patches.
        """
        check_is_fitted(self)
        self._validate_params()
        now = take_snapshot(self)
        if not isinstance(others, list | tuple) or not all(
            isinstance(x, PatchSVDD) for x in others
        ):
            raise TypeError(
                "others must be a list of estimators, copies of this one that "
                f"partial_fit has added images to, got {reprlib.repr(others)}."
            )
        for other in others:
            check_is_fitted(other)
        check_copies(now, others)
        banks = [x._fitted for x in others]
        added = find_added(now._fitted, banks)
        if sum(map(len, added)) == 0:
            return self
        calibration = now._calibration.change_rate(now.false_alarm_rate)
        calibration = calibration.join([x._calibration for x in others], added)
        context = now._make_context(now._report())
        former = now._fitted.change(feedback=None)
        fitted = join_fitted(former, banks, added, calibration, context)
        learnt = keep_feedback(now._fitted, fitted, calibration, context)
        self._set_learnt(now, *learnt)
        return self

    @computes
    def calibrate(self, X, groups=None) -> "PatchSVDD":
        """Set the threshold anew, by normal images that are not learnt from.

        For images in a new light, of a new lot or from another camera, on which more
        of the good ones raise an alarm than should: the threshold and p-values then
        come from these images alone, and hold for images taken as they were.
        `partial_fit` scores them again, as their features are kept up to 512 MiB.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels]) or None
            Normal images, none of which is memorized, taken as they come and not chosen
            for their scores. For a rate of false alarms a, at least 1 / a - 1 images
            are needed. None goes back to the training images.
        groups : array-like of shape (n_images,), default=None
            Which of them belong together, see `fit`; each group counts the same.

        Returns
        -------
        self : PatchSVDD
            The estimator: `offset_`, `calibrates_`, `calibration_scores_` and
            `calibration_groups_` have changed. A threshold that labels or people have
            fixed is given up.
        """
        check_is_fitted(self)
        self._validate_params()
        now = take_snapshot(self)
        held_out = None
        if X is not None:
            images = now._check_scored_images(X).hold()
            groups = check_groups(groups, len(images))
            held_out = hold_out(
                images, groups, now._fitted, now._on_device(), now._report()
            )
        self._go_by_rate(now, now._calibration.change(held_out=held_out))
        return self

    @computes
    def tune_threshold(self, X, y, *, miss_cost=np.inf, alarm_cost=1.0) -> Bunch:
        """Set the threshold by a few labelled images, which are not learnt from.

        By default so that no defective one is missed, with the fewest alarms of good
        ones; with a finite `miss_cost`, so that ``miss_cost * misses + alarm_cost *
        alarms`` is least. Of thresholds that are as good it is the one nearest to that
        of `false_alarm_rate`, a hundredth of a labelled score away from that score
        where there is room. It stays when `partial_fit` and `join` learn more, until
        `fix_threshold`, `calibrate` or `fit` sets another.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`, at least one of them defective.
        y : array-like of shape (n_images,) or (n_images, height, width)
            As for `fit`: 1 and -1, names, or masks.
        miss_cost : float, default=inf
            What a defective image costs that raises no alarm.
        alarm_cost : float, default=1.0
            What a good image costs that raises one.

        Returns
        -------
        facts : Bunch
            With `threshold`, the new `offset_`; the `scores` of the images; `n_good`,
            of which `n_alarms` score below it, and `n_defective`, of which `n_misses`
            do not; `alarm_range` and `miss_range`, the 95% ranges of the rates of both
            among images like these, by the binomial distribution; and, by the images
            that calibrate, `false_alarm_rate`, the fraction of new normal images that
            will raise an alarm, and its `false_alarm_range`. A warning says which
            labels contradict each other.
        """
        check_is_fitted(self)
        check_costs(miss_cost, alarm_cost)
        self._validate_params()
        now = take_snapshot(self)
        images = now._check_scored_images(X)
        labels = check_defects(y, None, images)
        if len(labels.defective) == 0:
            raise ValueError(
                "y must call at least one image abnormal. To set the threshold by "
                "normal images alone, call calibrate."
            )
        scores = score_images(images, now._on_device())
        warn_of_contradictions(images, labels, scores, now._fitted)
        good, defective = scores[labels.normal], scores[labels.defective]
        calibration, facts = now._calibration.tune(
            good, defective, now.false_alarm_rate, miss_cost, alarm_cost
        )
        self._set_learnt(now, now._fitted, calibration)
        return Bunch(scores=scores, **facts)

    def fix_threshold(self, score) -> "PatchSVDD":
        """Set the threshold to a score that a person chose, or undo that.

        It stays as one of `tune_threshold` does. Scores and p-values stay as they are.

        Parameters
        ----------
        score : float or None
            Images that score less are abnormal: at most 0, as all scores are. None goes
            back to the threshold of `false_alarm_rate`.

        Returns
        -------
        self : PatchSVDD
            The estimator: `offset_` and `fixed_threshold_` have changed.
        """
        check_is_fitted(self)
        now = take_snapshot(self)
        if score is None:
            self._validate_params()
            self._go_by_rate(now, now._calibration)
            return self
        is_number = isinstance(score, Real) and not isinstance(score, bool)
        if not is_number or not -np.inf < score <= 0:
            raise ValueError(
                "score must be a finite number of at most 0, as all scores are, or "
                f"None, got {score!r}."
            )
        calibration = now._calibration.change(fixed=float(score))
        self._set_learnt(now, now._fitted, calibration)
        return self

    def _go_by_rate(self, now, calibration):
        """Set the threshold by `false_alarm_rate`, with the scores of a calibration."""
        calibration = calibration.change_rate(now.false_alarm_rate).change(fixed=None)
        fitted = now._fitted
        if fitted.feedback is not None:
            feedback = fitted.feedback.change(levels=calibration.levels)
            fitted = fitted.change(feedback=feedback)
        self._set_learnt(now, fitted, calibration)

    def _set_learnt(self, former, fitted, calibration):
        """Set what goes on from a former state, a snapshot that must still be it."""
        learnt = describe_learnt(former.encoder_, fitted, calibration)
        set_learnt(self, learnt, former)

    @computes
    def fit_predict(self, X, y=None, groups="auto", masks=None) -> np.ndarray:
        """Fit to images and label each of them as normal or abnormal.

        Each image is scored against a bank that does not hold it. With
        ``false_alarm_rate="auto"`` all that are learnt from are normal.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        y : array-like of shape (n_images,) or (n_images, height, width), default=None
            As for `fit`: those that it calls abnormal become known defects.
        groups : "auto", array-like of shape (n_images,) or None, default="auto"
            As for `fit`.
        masks : array-like of shape (n_images, height, width) or list, default=None
            As for `fit`.

        Returns
        -------
        labels : ndarray of shape (n_images,)
            -1 for abnormal images, 1 for normal ones, of all images in X.
        """
        self.fit(X, y, groups=groups, masks=masks)
        if len(self.training_scores_) == len(X):  # all are learnt from
            return _labels(self.training_scores_ - self.offset_)
        images = self._check_any_images(X)
        learnt = dict(zip(self._fitted.known, self.training_scores_, strict=True))
        scores = np.array([learnt.get(x, np.nan) for x in list_digests(images)])
        is_new = np.isnan(scores)
        if is_new.any():
            new = images.take(np.flatnonzero(is_new))
            scores[is_new] = score_images(new, self._on_device())
        return _labels(scores - self.offset_)

    @on_snapshot
    def score_samples(self, X) -> np.ndarray:
        """Score images: high is normal, low is abnormal.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.

        Returns
        -------
        scores : ndarray of shape (n_images,)
            Minus the mean of the largest pixels of an image's map, see `score_pixels`
            and `relative_weight` of :class:`~skpatchsvdd.Inspection`. At most 0.
        """
        images = self._check_scored_images(X)
        return score_images(images, self._on_device())

    @on_snapshot
    def decision_function(self, X) -> np.ndarray:
        """Score images relative to the threshold: negative is abnormal.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.

        Returns
        -------
        decision : ndarray of shape (n_images,)
            ``score_samples(X) - offset_``.
        """
        return self.score_samples(X) - self.offset_

    @on_snapshot
    def predict(self, X) -> np.ndarray:
        """Label images as normal or abnormal.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.

        Returns
        -------
        labels : ndarray of shape (n_images,)
            -1 for abnormal images, 1 for normal ones.
        """
        return _labels(self.decision_function(X))

    @on_snapshot
    def p_values(self, X) -> np.ndarray:
        """Compute conformal p-values: how unusual images would be among normal ones.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.

        Returns
        -------
        p_values : ndarray of shape (n_images,)
            (1 + the number of training images that score no higher) / (1 + their
            number), each scored against a bank that does not hold it. An alarm at
            ``p_values(X) <= a`` calls about a fraction a of new normal images abnormal,
            for any a, if they are taken as the training images were. With `groups`, (1
            + the sum over the calibrating groups of the fraction of their images that
            score no higher) / (1 + the number of these groups): the same promise, for
            images of new groups.
        """
        check_is_fitted(self)
        return self._calibration.p_values(self.score_samples(X))

    @on_snapshot
    def check_drift(self, X, defect_fraction=0.2, level=0.01) -> DriftResult:
        """Test whether images still look as the threshold assumes.

        Of recent images, not selected by their scores. If they have drifted, the
        threshold no longer keeps its promise: `partial_fit` or `calibrate` with normal
        ones of them, or `fit` again.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            New images, as for `fit`, most of them normal. With `groups`, they count as
            one new group.
        defect_fraction : float in [0, 1), default=0.2
            Fraction of the images that may be abnormal: those of lowest score are left
            out.
        level : float in [0, 1), default=0.01
            Highest rate of false drift alarms.

        Returns
        -------
        result : DriftResult
            With `p_value`, `statistic`, `drifted` and `verdict`, in words; see
            :func:`skpatchsvdd.drift.drift_test`.
        """
        check_is_fitted(self)
        return drift_test(
            self.calibration_scores_,
            self.score_samples(X),
            self.calibration_groups_,
            defect_fraction=defect_fraction,
            level=level,
        )

    @on_snapshot
    def predict_mask(self, X, false_alarm_rate=None) -> np.ndarray | list:
        """Label pixels as normal or abnormal.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        false_alarm_rate : float in (0, 0.5], default=None
            Fraction of normal images allowed at least one flagged pixel: the larger,
            the larger the masks. None is the threshold of `predict`.

        Returns
        -------
        masks : ndarray of bool of shape (n_images, height, width) or list of ndarray
            True at abnormal pixels, at the size of the images that came in: of abnormal
            images, those with positive logits of damage that reach half the threshold;
            if there are none, those above the threshold.
        """
        images, seen, offset = self._look(X, false_alarm_rate)
        pairs = zip(seen, images.sizes, strict=True)
        masks = [x.resize(size, self.roi_).mask(offset) for x, size in pairs]
        return np.stack(masks) if images.came_in_one_size else masks

    @on_snapshot
    def predict_regions(self, X, false_alarm_rate=None) -> list:
        """List the connected abnormal regions of each image.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        false_alarm_rate : float in (0, 0.5], default=None
            As for `predict_mask`.

        Returns
        -------
        regions : list of structured ndarray, each of shape (n_regions,)
            One for each image, empty for normal ones, highest peak first. The fields:
            `top`, `left`, `bottom` and `right`, the box in pixels of the image that
            came in, `bottom` and `right` exclusive; `area`, the number of pixels; `row`
            and `col`, the pixel with the highest value of the anomaly map; `peak` and
            `mean`, that value and the mean. Of resized images, boxes and areas are
            rounded to whole pixels of the inspection.
        """
        images, seen, offset = self._look(X, false_alarm_rate)
        return self._resize_regions([x.regions(offset) for x in seen], images)

    @on_snapshot
    def inspect(self, X, explain=False, names=False, as_frame=False) -> Bunch:
        """Compute all there is to say about images, in one pass.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        explain : bool, default=False
            Whether to say, too, what was compared with what in abnormal images.
        names : bool, default=False
            Whether to say, too, which known kinds of defects their regions resemble.
        as_frame : bool, default=False
            Whether to return tables of pandas, too, which must be installed.

        Returns
        -------
        results : Bunch
            With the attributes `scores`, `p_values`, `labels`, `maps`, `masks` and
            `regions`: what `score_samples`, `p_values`, `predict`, `anomaly_map`,
            `predict_mask` and `predict_regions` return; `maps` and `masks` are lists.
            With `explain` also `matches`, as the method `explain` returns, with the
            row of the highest region, or none for a normal image. With `names` also
            `names`, what `name_regions` returns. With `as_frame` also `frame`, a
            DataFrame with a row for each image, and `regions` has one for each region,
            whose column `image` is the row of its image; see :ref:`frames`.
        """
        if as_frame:
            import_pandas()  # before anything is computed
        images, seen, offset = self._look(X, None, holds=explain or names)
        seen = list(seen)
        scores = np.array([x.score for x in seen])
        regions = [x.regions(offset) for x in seen]
        labels = _labels(scores - offset)
        more = {}
        if explain:
            abnormal = np.flatnonzero(labels == -1)
            highest = [x[:1] for x in regions]
            more["matches"] = self._explain(images, abnormal, seen, highest)
        if names:
            more["names"] = self._name(images, seen, offset)
        pairs = zip(seen, images.sizes, strict=True)
        seen = [x.resize(size, self.roi_) for x, size in pairs]
        results = Bunch(
            scores=scores,
            p_values=self._calibration.p_values(scores),
            labels=labels,
            maps=[x.map for x in seen],
            masks=[x.mask(offset) for x in seen],
            regions=self._resize_regions(regions, images),
            **more,
        )
        if as_frame:
            results.frame, results.regions = make_frames(results, images.files)
        return results

    @on_snapshot
    def explain(self, X, false_alarm_rate=None) -> list:
        """Say with which normal patches the abnormal ones were compared.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        false_alarm_rate : float in (0, 0.5], default=None
            As for `predict_mask`.

        Returns
        -------
        matches : list of structured ndarray, each of shape (n_regions, n_scales)
            One for each image. In its rows are the regions of `predict_regions`, at
            their highest pixel, or, of a normal image, its highest pixel alone; in its
            columns the `patch_sizes_`. Of the patches over that pixel it is the one
            farthest from all normal ones. The fields: `top`, `left`, `bottom` and
            `right`, its box in the image that came in; the `distance` to the nearest
            normal patch; `image`, the index of that one's training image in
            `training_scores_` and `training_files_`; and `image_top`, `image_left`,
            `image_bottom` and `image_right`, its box there.
        """
        images, seen, offset = self._look(X, false_alarm_rate, holds=True)
        seen = list(seen)
        regions = [x.regions(offset) for x in seen]
        return self._explain(images, np.arange(len(images)), seen, regions)

    def _explain(self, images, chosen, seen, regions):
        sizes = self._fitted.sizes
        return explain(self._on_device(), images, chosen, seen, regions, sizes)

    @on_snapshot
    def name_regions(self, X, false_alarm_rate=None) -> list:
        """Say which kind of known defects each abnormal region resembles.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        false_alarm_rate : float in (0, 0.5], default=None
            As for `predict_mask`.

        Returns
        -------
        names : list of structured ndarray, each of shape (n_regions,)
            One for each image, in its rows the regions of `predict_regions`. The
            fields: `kind`, a name in the y of `fit` or `partial_fit`, "defect" for
            those labelled -1, or "unknown"; and `distance` to the nearest known defect,
            see the :ref:`user guide <feedback>`: infinite if none is known, and from 1
            on "unknown".
        """
        return self._name(*self._look(X, false_alarm_rate, holds=True))

    def _look(self, X, false_alarm_rate, holds=False):
        """Return images, what is seen in each, and the threshold at a rate.

        With `holds`, for images that are looked at again, each is read once.
        """
        offset = self._offset_at(false_alarm_rate)
        images = self._check_scored_images(X)
        images = images.hold() if holds else images
        return images, inspect_images(images, self._on_device()), offset

    def _name(self, images, seen, offset):
        masks = [x.split(offset) for x in seen]
        feedback = self._fitted.feedback or Feedback()
        return name_masks(images, masks, self._on_device(), feedback.defects)

    @on_snapshot
    def check_training_files(self, indices=None) -> np.ndarray:
        """Say whether the files that were learnt from still hold the same images.

        Parameters
        ----------
        indices : array-like of int, default=None
            Which of the `training_files_`; None means all.

        Returns
        -------
        status : ndarray of str of shape (n_indices,)
            "same", "changed" for files with other pixels, "unreadable" for those that
            are gone or broken, and "no file" for images that did not come as one.
        """
        check_is_fitted(self)
        indices = range(len(self.training_files_)) if indices is None else indices
        # Each file by itself: one that has another size is no fault of the others.
        return np.array(
            map_in_threads(self._check_training_file, list(indices), uses_torch=True)
        )

    def _check_training_file(self, index):
        file = self.training_files_[index]
        if file is None:
            return "no file"
        try:
            images = self._check_any_images([file])
            if images.image_shape != self.inspected_shape_:
                return "changed"
            (digest,) = list_digests(images)
        except (OSError, ValueError):
            return "unreadable"
        return "same" if digest == self._fitted.known[index] else "changed"

    def _offset_at(self, false_alarm_rate):
        """Return the threshold at a fraction of alarms, that of `predict` for None."""
        check_is_fitted(self)
        if false_alarm_rate is None:
            return self.offset_
        if not isinstance(false_alarm_rate, Real) or not 0 < false_alarm_rate <= 0.5:
            raise ValueError(
                f"false_alarm_rate must be in (0, 0.5], got {false_alarm_rate!r}."
            )
        return self._calibration.offset(false_alarm_rate, name="false_alarm_rate")

    def _resize_regions(self, regions, images):
        size = self.inspected_shape_[:2]
        pairs = zip(regions, images.sizes, strict=True)
        return [resize_regions(x, size, image_size) for x, image_size in pairs]

    @on_snapshot
    def anomaly_map(self, X, scale=None) -> np.ndarray | list:
        """Score every pixel: high is abnormal, low is normal.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        scale : int or str, default=None
            One of `scales_`, for the map of that scale alone. None joins the
            maps of all scales.

        Returns
        -------
        maps : ndarray of shape (n_images, height, width) or list of ndarray
            float32, at the size of the images that came in; a list of maps for a list
            of images of unequal size.
        """
        images = self._check_scored_images(X)
        if scale is not None:
            scale = self._check_scale(scale, "scale")
        batches = make_maps(images, self._on_device(), scale)
        maps = (one_map for batch in batches for one_map in batch)
        pairs = zip(maps, images.sizes, strict=True)
        maps = (resize_map(x, size, self.roi_) for x, size in pairs)
        if not images.came_in_one_size:
            return list(maps)
        stack = np.empty((len(images), *images.sizes[0]), dtype=np.float32)
        for row, one_map in zip(stack, maps, strict=True):
            row[:] = one_map
        return stack

    @on_snapshot
    def embed(self, X, patch_size) -> np.ndarray:
        """Encode all patches of images.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        patch_size : int or str
            One of `scales_`.

        Returns
        -------
        features : ndarray of shape (n_images, rows, cols, D)
            Row i and column j belong to the patch whose top left pixel is
            (i * stride, j * stride).
        """
        images = self._check_scored_images(X)
        scale = self._check_scale(patch_size, "patch_size")
        dense = self._on_device().encoder
        batches = images.batches(dense.batch_size)
        features = [dense.encode(batch)[scale].cpu() for _, batch in batches]
        return torch.cat(features).numpy()

    @on_snapshot
    def save(self, path: str | os.PathLike) -> None:
        """Save the fitted estimator in a file that cannot run code.

        The file, in the layout of safetensors, is loaded by :func:`skpatchsvdd.load` on
        any machine, with or without a GPU. It is written as a whole or not at all. Use
        joblib for pipelines and searches. Of a module of your own that was passed as
        `encoder` it holds a checksum alone: `load` needs that module again.

        Parameters
        ----------
        path : str
            The file to write. An integer or None is saved of `random_state`: a
            generator becomes None.
        """
        check_is_fitted(self)
        save_estimator(self, path)

    @on_snapshot
    def export_onnx(self, path, *, input_size=None) -> dict:
        """Write a file of ONNX that inspects images without this package or torch.

        From bytes of images to what `score_samples`, `p_values`, `predict` and
        `anomaly_map` give, for onnxruntime and others; see the
        :ref:`user guide <onnx>`. It is written as a whole or not at all. Needs
        ``pip install onnx onnxscript``.

        Parameters
        ----------
        path : str
            The file to write.
        input_size : (int, int), default=None
            With `image_size`, the height and width of the images that the file takes
            and resizes. None is that of the training images, if they have one.

        Returns
        -------
        facts : dict
            What is in its metadata, too: "version" of the package, "image_shape" of the
            images it takes, "inspected_shape", "threshold" and, by scale, "bank_size".
        """
        check_is_fitted(self)
        return export_onnx(self, path, input_size)

    def _check_training_images(self, X, y, groups, masks):
        """Return normal images, their groups, `DefectiveImages`, and places in X.

        There are None of what nobody has called so.
        """
        images = check_images(X, image_size=self.image_size)
        n_given = len(images)
        groups = check_groups(groups, n_given)
        labels = check_defects(y, masks, images)
        normal, defective = labels.normal, None
        if len(normal) < n_given:
            defective = take_defective(images, labels).without(())
            images = images.take(normal)
            groups = None if groups is None else groups[normal]
        if len(images) < 2:
            n_abnormal = n_given - len(images)
            abnormal = f", and {n_abnormal} that y calls abnormal" if n_abnormal else ""
            raise ValueError(
                f"X has {len(images)} sample(s) to learn from{abnormal}. Pass at least "
                "two normal images: the threshold comes from images that the bank does "
                "not hold."
            )
        check_n_groups(groups)
        return images.hold(), groups, defective, normal

    def _make_pretrained(self, images, options, device):
        """Return the pretrained encoders, and the strides of all scales."""
        if images.reduction > 1 and not options.embeds:
            raise ValueError(
                "image_size='full' needs encoder='procedural', alone, and "
                "training='dense'. Pass these, or image_size=(height, width)."
            )
        given, shape = self.strides, images.image_shape
        strides = check_strides(given, options.encoder, self.patch_size, shape)
        length = self.embedding_dim if options.embeds else None
        pretrained = make_pretrained(options.pretrained, images, device, length)
        pretrained += make_detail(images, self.embedding_dim)
        return pretrained, strides + tuple(k for x in pretrained for k in x.strides)

    def _identify(self, images, groups, defective):
        """Return images as `NormalImages`, with their digests and owners."""
        with self._report().side_progress("reading images", len(images)) as progress:
            digests = digest_images(images, progress)
        if defective is not None:
            check_apart(defective, set(digests))
        numbers = np.arange(len(images))
        owners = numbers if groups is None else number_owners(groups)
        return NormalImages(images, digests, owners, shown=numbers, groups=groups)

    def _split(self, normal, options, rng):
        """Return `NormalImages` of which some may be trained on, and some calibrate."""
        former, groups = self._former_images(), normal.groups
        is_seen = np.array([x in former for x in normal.known])
        owners, shown, calibrates = split_groups(groups, is_seen, options.trains, rng)
        return replace(normal, owners=owners, shown=shown, calibrates=calibrates)

    def _former_training(self):
        """Return the training that a warm start goes on from, or None."""
        if not self.warm_start:
            return None
        if self._unfinished is not None:
            return self._unfinished
        if not hasattr(self, "encoder_") or not self.encoder_.members[0].is_trainable:
            return None
        return resume_from(self.encoder_, self.lam_)

    @contextmanager
    def _kept_if_unfinished(self, training):
        """Keep a training if what follows it is interrupted or fails."""
        try:
            yield
        except BaseException as error:
            if training.curve:
                training.watch.forget_images()
                self._unfinished = training
                warn(
                    f"fit has ended with {type(error).__name__} after its training. "
                    "The trained weights are kept: set_params(warm_start=True, "
                    "max_iter=0).fit(X) goes on from them, without training again.",
                    TrainingKept,
                )
            raise

    def _describe_fit(self, fitted, calibration, training, images, suspects):
        """Return what `fit` has learnt, as attributes."""
        setting, shape = fitted.setting, tuple(images.image_shape)
        return describe_learnt(
            training.encoder.eval(),
            fitted,
            calibration,
            inspected_shape_=shape,
            n_features_in_=int(np.prod([*images.sizes[0], shape[2]])),
            center_=setting.center,
            strides_=setting.strides,
            roi_=setting.roi,
            suspects_=suspects,
            **describe_training(training),
        )

    def _build(self, normal, training, context, finds_twins):
        """Build the bank and score all images, each without its own patches.

        With `finds_twins`, also without those that show the same piece. A training
        whose final weights score all images the same has collapsed: it is undone.
        Returns the training, the bank, and the `Calibration` of the scores.
        """
        context = replace(context, encoder=training.encoder)
        fitted, owned, twins = build_bank(normal, context), normal, None
        if finds_twins:
            middle = fitted.indexes[len(fitted.indexes) // 2]
            twins = find_twins(middle.view_bank(), len(normal), context.device)
        # Callbacks have seen the tasks they were told of, and hear nothing of others.
        silent = replace(context, report=self._report())
        if twins is not None:
            owned = replace(normal, owners=twins)
            fitted = build_bank(owned, silent)
        label = "scoring images, each without its own patches"
        with context.report.progress(label, len(normal)) as progress:
            scores = score_memorized(normal.stack, context.load(fitted), progress)
        # Where every image has a copy, all of them find it, at a distance of 0.
        is_collapsed = are_tied(scores) and min(Counter(normal.known).values()) == 1
        if not training.curve or not is_collapsed or training.watch.kept == 0:
            if twins is not None:
                warn_of_twins(twins)
            check_scores(scores)
            rate = self.false_alarm_rate
            return training, fitted, Calibration.start(owned, scores, rate)
        warn_of_collapse(context.options.training)
        return self._build(normal, undo_training(training), silent, finds_twins)

    def _report(self):
        """Return a report that callbacks do not hear."""
        return Report(type(self).__name__, self.verbose)

    def _make_context(self, report):
        """Return how a fitted estimator learns more, without training."""
        device = fallback_device(self.device)
        return FitContext(
            self._fitted.setting._replace(device=device),
            resolve_options(self.get_params(deep=False), device),
            check_random_state(self.random_state),
            report,
            self.encoder_,
        )

    def _former_images(self):
        """Return the digests of the images that a warm start's encoder has seen."""
        goes_on = self.warm_start and hasattr(self, "_fitted")
        return self._fitted.seen if goes_on else set()

    def _list_seen(self, training, normal, defective):
        """Return the digests of all images that the encoder has been trained on."""
        seen = self._former_images()
        if not training.curve:
            return seen
        seen = seen | {normal.known[i] for i in normal.shown}
        if defective is not None:
            pairs = zip(defective.known, defective.masks, strict=True)
            seen |= {digest for digest, mask in pairs if mask is not None}
        return seen

    def _check_scored_images(self, X):
        check_is_fitted(self)
        images = self._check_any_images(X)
        if images.image_shape != self.inspected_shape_:
            *size, n_channels = self.inspected_shape_
            way_out = "Pass images of that shape."
            if images.image_shape == (n_channels, *size):
                way_out = "Channels must be last: pass np.moveaxis(X, 1, -1)."
            elif images.image_shape[2] == n_channels:
                way_out += " An image_size in fit would have resized them."
            raise ValueError(
                f"X has images of shape {tuple(images.image_shape)}, but "
                f"{type(self).__name__} was fitted on images of shape "
                f"{self.inspected_shape_}: height, width, channels. {way_out}"
            )
        return images

    def _check_any_images(self, X):
        """Check images that need not have the shape of those that were learnt from."""
        size, n_channels = self.image_size, self.inspected_shape_[2]
        reduction = self._fitted.setting.reduction
        if isinstance(size, str):  # all are brought to the size of the first ones
            size = self.inspected_shape_[:2]
        return check_images(
            X, image_size=size, n_channels=n_channels, reduction=reduction
        )

    def _check_scale(self, value, name):
        if not isinstance(value, Integral | str) or value not in self.scales_:
            raise ValueError(f"{name} must be one of {self.scales_}, got {value!r}.")
        return self.scales_.index(value)

    def _on_device(self):
        """Return what inspects images, a `DeviceBank`."""
        return self._fitted.on_device(self.encoder_, fallback_device(self.device))

    @property
    def classes_(self) -> np.ndarray:
        """What `predict` returns, -1 and 1; `cross_val_predict` asks for it."""
        check_is_fitted(self)
        return np.array([-1, 1])

    @property
    def scales_(self) -> tuple:
        """What the scales are called: sizes of patches, or maps of a module."""
        check_is_fitted(self)
        return self.encoder_.scale_names

    @property
    def training_digests_(self) -> list:
        """By which the training images are recognised."""
        check_is_fitted(self)
        return [digest.hex() for digest in self._fitted.known]

    @property
    def _repr_html_(self):
        """What notebooks show: scikit-learn's diagram, and what is fitted."""
        draw = super()._repr_html_  # raises AttributeError with display="text"
        return lambda: show_learnt(self, draw())

    def _repr_mimebundle_(self, **kwargs):
        """Return what notebooks show, by its type; see `_repr_html_`."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] = show_learnt(self, bundle["text/html"])
        return bundle

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags


def load(path: str | os.PathLike, mmap: bool = False, encoder=None) -> PatchSVDD:
    """Load an estimator that `PatchSVDD.save` has written.

    Nothing in the file is run. Everything is checked, sizes before memory is taken for
    them, and a damaged file is refused.

    Parameters
    ----------
    path : str
        The file.
    mmap : bool, default=False
        Whether to map the bank into memory instead of loading it, so that processes on
        one machine share it, and to let models of one process share the pretrained
        weights.
    encoder : torch.nn.Module or list, default=None
        What the estimator was fitted with, if that was a module of your own, or a list
        that holds some: a file holds no code, but a checksum of a module's weights, by
        which another one is refused.

    Returns
    -------
    estimator : PatchSVDD
        Fitted.

    Examples
    --------
    >>> import os, tempfile
    >>> import skpatchsvdd
    >>> from skpatchsvdd.datasets import make_textures
    >>> X = make_textures(4, image_size=48, random_state=0).images
    >>> est = skpatchsvdd.PatchSVDD(patch_size=32, max_iter=0, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     est.save(os.path.join(folder, "part.model"))
    ...     loaded = skpatchsvdd.load(os.path.join(folder, "part.model"))
    >>> bool((loaded.score_samples(X) == est.score_samples(X)).all())
    True
    """
    with normal_mode():
        return load_estimator(PatchSVDD, path, mmap, encoder)


def _make_setting(normal, options, strides, device, roi):
    """Return how `NormalImages`, and all others that are inspected, are encoded."""
    center = np.full((1, 1, 1), _MID_GREY, dtype=np.float32)
    if options.training == "paper":
        center = normal.shown_stack().mean_image()
    size, reduction = normal.stack.image_shape[:2], normal.stack.reduction
    return DenseSetting(size, center, options.light, strides, device, roi, reduction)


def _labels(decision):
    return np.where(decision >= 0, 1, -1)
