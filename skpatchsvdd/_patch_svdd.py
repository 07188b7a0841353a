"""The estimator: parameters, fit in five steps, scores and maps."""

import copy
import weakref
from numbers import Integral, Real

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, Options, RealNotInt, StrOptions
from sklearn.utils.validation import check_is_fitted

from skpatchsvdd._bank import collect_banks, find_units
from skpatchsvdd._calibration import p_values_from_scores, threshold_from_scores
from skpatchsvdd._checks import (
    DEFAULT_STRIDES,
    are_tied,
    check_scores,
    check_strides,
    digest_images,
    warn_of_ties,
)
from skpatchsvdd._device import check_device, fallback_device, torch_threads
from skpatchsvdd._groups import (
    check_count,
    check_groups,
    choose_aside,
    find_unseen,
    number_owners,
    warn_if_grouped,
)
from skpatchsvdd._images import check_images, list_digests
from skpatchsvdd._inspection import DenseEncoder, Inspector
from skpatchsvdd._labels import find_normal
from skpatchsvdd._maps import cut_map, resize_map
from skpatchsvdd._neighbors import make_index
from skpatchsvdd._progress import Progress
from skpatchsvdd._recipe import Training, TrainingMixin
from skpatchsvdd.drift import drift_test

# What "auto" means for how images are inspected, by `training` or for raw patches.
_AUTO_INSPECTION = {
    "dense": {"light": 0.3, "place_weight": "auto"},
    "paper": {"light": 1.0, "place_weight": 0.0},
    "raw": {"light": 1.0, "place_weight": 0.0},
}
_MID_GREY = 0.5
_WHOLE = (slice(None), slice(None))
_MAX_SEED = np.iinfo(np.int32).max
# The inspector that each estimator has used last. Here, and not in the estimator, whose
# attributes no call but fit may change.
_INSPECTORS = weakref.WeakKeyDictionary()


class PatchSVDD(TrainingMixin, OutlierMixin, BaseEstimator):
    r"""Patch SVDD: detect and locate anomalies in images from normal images alone.

    An encoder of small patches is trained without labels or pretrained weights: patches
    a pixel or two apart are drawn together in feature space, while a classifier must
    tell from two features how their patches lie to each other [1]_:

    .. math:: L = \lambda \, L_{SVDD'} + L_{SSL}.

    By default a third term keeps patches with made-up defects away from the same
    patches without them.

    The features of all patches of the training images form a bank. A patch of a new
    image scores its distance to the nearest feature of the bank, a pixel the mean over
    the patches that cover it, and an image the maximum over its pixels. By default a
    patch's place in the image counts too: a normal patch in the wrong place is abnormal
    if the training images show the same things in the same places.

    Read more in the :ref:`user guide <user_guide>`.

    Parameters
    ----------
    lam : float, "auto" or None, default=None
        The paper's :math:`\lambda \ge 0`, the weight of :math:`L_{SVDD'}`. None is 0.3,
        and 1e-3 with ``training="paper"``. In dense training that term does not change
        when all features shrink, and any value can be tried; the paper's own term draws
        all features of uniform images to one point if its weight is large. "auto" tries
        three values, 0.03, 0.3 and 3 (the paper's: 1e-4, 1e-3 and 1e-2), with a quarter
        of the steps each, and measures how well they tell made-up defects on images set
        aside from changes of light. It takes the smallest that is not clearly worse
        than the best. Training then takes about twice as long. Where it has no effect,
        and with fewer than four images, it is the middle one.

    embedding_dim : int, default=64
        The paper's D, the length of a feature.

    patch_size : {32, 64, 128}, default=64
        K, the size of the largest patches. All smaller scales down to 32 are inspected
        too.

    strides : tuple of int, default=None
        Pixels from one patch to the next, one for each scale, smallest scale first.
        None is 4, 16, 16 for the scales 32, 64, 128.

    encoder : {"hierarchical", "flat", "raw"}, default="hierarchical"
        "hierarchical" builds the feature of a patch from those of its quarters. "flat"
        is the paper's non-hierarchical network for patches of 64 alone. "raw" takes the
        pixels of the patch as its feature: nothing is trained, and the bank takes
        K * K * channels numbers a patch.

    loss : {"patch_svdd", "svdd_prime", "svdd"}, default="patch_svdd"
        "svdd_prime" is :math:`L_{SVDD'}` alone, "svdd" draws all features to one fixed
        centre, the mean of the initial features. `lam` has no effect on either.

    training : {"dense", "paper"}, default="dense"
        "dense" encodes crops of 128 x 128 pixels as whole maps and draws all pairs
        from them; each crop is seen in two views, each in a light of its own, of which
        the second has synthetic defects and may be shifted. "paper" is the paper's
        training, on pairs of patches cut out one by one, in float32: it needs many more
        steps, and collapses on some images. Only the number of its steps, and what is
        done when it fails, is not the authors'; the :ref:`user guide <paper_training>`
        lists all differences.

    damage_weight : float, default=1.0
        Weight of the term that, in dense training, keeps patches with made-up defects
        away from all patches without them. 0 leaves it out.

    light : "auto" or float in [0, 1], default="auto"
        Share of slow changes of brightness across an image, those of more than about
        16 pixels, that the encoder gets to see. 1 leaves images as they are; 0 takes
        all of them out, and with them every change of light that is smooth, but also
        the colour of large even areas. "auto" is 0.3, and 1 with ``training="paper"``
        or ``encoder="raw"``.

    place_weight : "auto" or float, default="auto"
        How much the place of a patch counts when its nearest neighbour is looked for:
        the distance between opposite edges of an image, in units of the median distance
        from a normal patch to the nearest one of another image. 0 compares features
        alone, as the paper does. "auto" looks at where the nearest ones lie: if for
        three quarters of the patches they lie in the same place, the images are
        aligned, as pictures of parts in a mount are, and it is 20; if for a quarter or
        less, as in pictures of materials, it is 0; and in between in between. It is 0
        with ``training="paper"`` or ``encoder="raw"``.

    bank_size : int, float in (0, 1] or None, default=None
        How many normal patches of each scale are kept, or which share of them. What is
        kept covers all: one patch after the other, always the one farthest from those
        kept so far (greedy k-centre), while the images stream by. A small bank is
        searched faster and saved in a smaller file. None keeps everything up to 1 GiB a
        scale, which is four million patches, and a part that covers it beyond.

    aggregation : {"multiply", "sum"}, default="multiply"
        How the scales' maps are joined.

    max_iter : "auto" or int, default="auto"
        Optimisation steps. 0 keeps the random weights, the paper's random encoder.
        "auto" is 1000 on a GPU and 240 on a CPU; 12000 with ``training="paper"``, whose
        authors take ``300 * 100 * n_images / 64`` steps: 300 epochs of 100 pairs of
        each image, 64 at a time.

    batch_size : "auto" or int, default="auto"
        Crops a step; with ``training="paper"``, pairs of patches a step for each loss
        and scale. "auto" is 16 crops on a GPU and 6 on a CPU, or 64 pairs.

    learning_rate : "auto" or float, default="auto"
        Step size of Adam. In dense training it is the largest one: it rises over the
        first twentieth of the steps and falls to 0 along half a cosine. With
        ``training="paper"`` it is that of every step. "auto" is 1e-3 on a GPU and
        1.5e-3 on a CPU, which takes fewer steps; 1e-4 with ``training="paper"``.

    early_stopping : bool, default=False
        Whether to set `validation_fraction` of the images aside while training, to
        check a dozen times how well made-up defects on them are told from changes of
        light, to stop after four checks without a better score, and to keep the best
        weights. Without it there are two checks, on training images, and the last
        weights are kept; only if they have collapsed, or tell less than the random ones
        did, the best ones are, with a warning.

    validation_fraction : float in (0, 1), default=0.1
        Share of the images set aside for early stopping, at least 2. The bank holds
        them in any case.

    image_size : int or (int, int), default=None
        Size (height, width) to which every image is resized, anti-aliased, before it is
        looked at. None keeps the size.

    image_shape : tuple of (height, width) or (height, width, channels), default=None
        How to read rows when X is two-dimensional.

    contamination : "auto" or float in (0, 0.5], default="auto"
        Where `predict` draws the line. Every training image is scored against a bank
        that does not hold it. "auto" puts `offset_` at the lowest of these n scores: a
        new normal image raises a false alarm with a probability of about 1 / (n + 1).
        A float puts `offset_` where at most this share of new normal images is called
        abnormal, and about this share of the training images. Both hold for images
        taken as the training images were; `p_values` lets you choose a share later.
        With `groups`, the scores are those of groups that the encoder has not seen, and
        both hold for images of new groups; see `fit`.

    neighbors : {"auto", "exact", "pynndescent"}, default="auto"
        How the nearest normal patch is found. "exact" sorts the bank into clusters and
        skips those that cannot hold the nearest one. pynndescent finds distances that
        are never too small, but some too large; those that could raise the score of an
        image are made exact, see `tolerance`. It compiles for about a minute in each
        new process. "auto" is pynndescent for banks of more than two million patches of
        a scale on a CPU, and exact otherwise.

    tolerance : float, default=0.0
        Share by which the score of an image may look too abnormal because of
        pynndescent's approximation. From the largest pixel of the anomaly map down,
        distances are made exact until that is certain. 0 gives the same scores as exact
        search; smaller pixels of the map may be too large in any case.

    warm_start : bool, default=False
        True lets `fit` go on from the weights in `encoder_`, or from those of a later
        `fit` that was interrupted after its training, with a new optimiser, and build
        the bank anew. With ``max_iter=0`` the weights are kept as they are.

    device : str, default="auto"
        "auto" (CUDA where there is a GPU, the CPU elsewhere), "cpu", "cuda", "cuda:1"
        or "mps". A fitted estimator goes wherever its file goes: without the device it
        was fitted on, it scores on the CPU.

    n_jobs : int, default=None
        Threads of torch, and of building pynndescent's index, on the CPU. None leaves
        their own choice, which pynndescent's queries always follow.

    random_state : int, RandomState instance or None, default=None
        Initial weights and the patches drawn. With the same value, on the same machine
        with the same number of threads, `fit` gives the same weights and scores to the
        last bit. On another kind of processor the initial weights and what is drawn are
        the same, and so, but for rounding, are the losses of the first steps and all
        scores without training. A training carries roundings on: its weights and
        scores differ.

    verbose : int, default=0
        1 reports each step of `fit`, 2 also the losses while training.

    Attributes
    ----------
    encoder_ : torch.nn.Module
        The encoder, on the CPU. ``encoder_(patches)`` maps (n, channels, K, K) to
        (n, D). The parameters are the small encoder's eight convolutions, then the two
        of each larger scale, weight before bias.

    lam_ : float
        The weight that was used.

    lam_results_ : dict of str to ndarray, or None
        With ``lam="auto"``, for each value tried, "lam": the "score", which is the area
        under the ROC curve of telling images with made-up defects, and "fit_time", the
        seconds it took. None if none was tried.

    offset_ : float
        ``decision_function(X) = score_samples(X) - offset_``.

    training_scores_ : ndarray of shape (n_images,)
        Score of each training image against the bank without its own patches; with
        `groups`, without those of all images of its group. High is normal: the lowest
        ones are worth a look before the training set is trusted.

    calibrates_ : ndarray of bool of shape (n_images,)
        Whose of these scores `offset_` and `p_values` come from. All without `groups`;
        with them, those of the groups that the encoder was not trained on.

    groups_ : ndarray of shape (n_images,) or None
        The group of each training image, if `fit` was given groups.

    center_ : ndarray of shape (height, width, n_channels) or (1, 1, 1)
        What is subtracted from every image: 0.5, the middle of the 0..1 scale, or, with
        ``training="paper"``, the mean training image.

    image_shape_ : tuple of (height, width, n_channels)
        Shape of the images as they are inspected.

    patch_sizes_, strides_ : tuple of int
        The scales inspected, smallest first, and their strides.

    bank_size_ : dict of int to int
        Number of normal patches kept, by patch size.

    loss_curve_ : dict of str to ndarray of shape (n_steps,)
        Every loss term at every step: "position_32", "svdd_32" and so on, not weighted.

    n_iter_ : int
        Steps taken.

    best_iter_ : int
        The step whose weights were kept.

    validation_steps_, validation_scores_ : ndarray of shape (n_checks,)
        When training was checked, beginning before the first step, and the area under
        the ROC curve of telling images with made-up defects from the same images in
        this and another light.

    n_features_in_ : int
        Values in one image: height * width * channels as the first one came in.

    See Also
    --------
    sklearn.ensemble.IsolationForest : Outlier detection on feature vectors.
    sklearn.neighbors.LocalOutlierFactor : The same with nearest neighbours.

    Notes
    -----
    Images that the estimator was fitted on are recognised, to the last bit, and scored
    without their own patches in the bank, among which they would find themselves at
    distance zero, and, with ``training="paper"``, without their own share in the mean
    image. So the scores and maps of training images mean something, and
    ``fit(X).predict(X)`` equals ``fit_predict(X)``. It is close to fitting without the
    image, but not the same: the encoder has seen it.

    Patches begin at the top left. Where the image size less the patch size is no
    multiple of the stride, the last rows and columns, fewer than a stride, are not
    inspected and take the values of the nearest pixels that are.

    Grey images stay one channel. Three equal channels would train the same filters at
    three times the cost of the first layer: torch scales initial weights by the number
    of inputs, so that the filters' sums over equal channels have the same variance.

    The bank takes 0.9 MB for an image of 256 x 256 at the default settings.

    References
    ----------
    .. [1] J. Yi and S. Yoon, "Patch SVDD: Patch-level SVDD for Anomaly Detection and
       Segmentation", Asian Conference on Computer Vision, 2020.

    Examples
    --------
    >>> from skpatchsvdd import PatchSVDD
    >>> from skpatchsvdd.datasets import make_textures
    >>> train = make_textures(n_samples=8, image_size=64, random_state=0)
    >>> test = make_textures(
    ...     n_samples=6, image_size=64, anomaly_fraction=0.5, random_state=1
    ... )
    >>> est = PatchSVDD(patch_size=32, max_iter=5, batch_size=2, random_state=0)
    >>> est.fit(train.images).score_samples(test.images).shape
    (6,)
    >>> est.anomaly_map(test.images).shape
    (6, 64, 64)
    """

    _parameter_constraints = {  # noqa: RUF012
        "lam": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left"), None],
        "embedding_dim": [Interval(Integral, 1, None, closed="left")],
        "patch_size": [Options(Integral, set(DEFAULT_STRIDES))],
        "strides": ["array-like", None],
        "encoder": [StrOptions({"hierarchical", "flat", "raw"})],
        "loss": [StrOptions({"patch_svdd", "svdd_prime", "svdd"})],
        "training": [StrOptions({"dense", "paper"})],
        "damage_weight": [Interval(Real, 0, None, closed="left")],
        "light": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "place_weight": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "bank_size": [
            Interval(Integral, 1, None, closed="left"),
            Interval(RealNotInt, 0, 1, closed="right"),
            None,
        ],
        "aggregation": [StrOptions({"multiply", "sum"})],
        "max_iter": [StrOptions({"auto"}), Interval(Integral, 0, None, closed="left")],
        "batch_size": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
        ],
        "learning_rate": [
            StrOptions({"auto"}),
            Interval(Real, 0, None, closed="neither"),
        ],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "image_size": [Interval(Integral, 1, None, closed="left"), "array-like", None],
        "image_shape": ["array-like", None],
        "contamination": [
            StrOptions({"auto"}),
            Interval(Real, 0, 0.5, closed="right"),
        ],
        "neighbors": [StrOptions({"auto", "exact", "pynndescent"})],
        "tolerance": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
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
        patch_size=64,
        strides=None,
        encoder="hierarchical",
        loss="patch_svdd",
        training="dense",
        damage_weight=1.0,
        light="auto",
        place_weight="auto",
        bank_size=None,
        aggregation="multiply",
        max_iter="auto",
        batch_size="auto",
        learning_rate="auto",
        early_stopping=False,
        validation_fraction=0.1,
        image_size=None,
        image_shape=None,
        contamination="auto",
        neighbors="auto",
        tolerance=0.0,
        warm_start=False,
        device="auto",
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.lam = lam
        self.embedding_dim = embedding_dim
        self.patch_size = patch_size
        self.strides = strides
        self.encoder = encoder
        self.loss = loss
        self.training = training
        self.damage_weight = damage_weight
        self.light = light
        self.place_weight = place_weight
        self.bank_size = bank_size
        self.aggregation = aggregation
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.image_size = image_size
        self.image_shape = image_shape
        self.contamination = contamination
        self.neighbors = neighbors
        self.tolerance = tolerance
        self.warm_start = warm_start
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y=None, groups=None):
        """Learn from normal images what normal patches look like.

        Nothing changes in the estimator until all is done: a call that fails leaves its
        scores as they were. An interrupt (Ctrl-C) while training ends the training
        early, with a warning, and `fit` goes on with the weights so far; at any other
        time, such as while ``lam="auto"`` is chosen, it ends `fit`.

        Where `fit` is interrupted or fails after the training, while the bank is built,
        the trained weights are kept aside, and a warning says so.
        ``set_params(warm_start=True, max_iter=0).fit(X)`` goes on from them; so it does
        in another process, from a pickle. A clone does not have them, and the next
        `fit` that ends well drops them.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            At least two normal images. uint8 is divided by 255 and uint16 by 65535;
            floats are taken as they are and should lie in about 0..1. Also rows of
            shape (n_images, n_features) with `image_shape`, a list of images, or a list
            of paths of image files (``pip install skpatchsvdd[images]``), of unequal
            size with `image_size`. Files, and arrays mapped into memory, are read batch
            by batch; up to 1 GiB of images, a random choice, is trained on.
        y : array-like of shape (n_images,) or (n_images, height, width), default=None
            Images labelled -1 among labels 1 and -1, and images whose mask has a pixel
            that is not 0, are left out: nothing is learnt from images known to be
            abnormal, so that a search with labels may refit. Other values are ignored,
            and all images are taken for normal; a warning says so if they are two, such
            as 0 and 1.
        groups : array-like of shape (n_images,), default=None
            Which images belong together, as tiles of one sheet, frames of one video or
            pictures of one lot do: a number or a name for each, at least two different
            ones. Half of the groups, a random choice, are set aside while the encoder
            is trained. Their images are scored without any patch of their own group in
            the bank, as an image of a new group will be, and `offset_` and `p_values`
            come from these scores alone; each group counts the same. All images join
            the bank. Without training (``max_iter=0``) all groups calibrate. Give none
            if images are independent of each other; a warning says if they look as if
            they were not.

        Returns
        -------
        self : PatchSVDD
            The fitted estimator.
        """
        images, groups = self._check_training_images(X, y, groups)
        strides = check_strides(
            self.strides, self.encoder, self.patch_size, images.image_shape
        )
        device = check_device(self.device)
        rng = check_random_state(self.random_state)
        light = self._resolve_inspection("light")
        known = digest_images(images)
        owners, shown, calibrates = self._split_groups(groups, known, device, rng)
        seen = images if len(shown) == len(images) else images.take(shown)
        with torch_threads(self.n_jobs):
            center = self._center_of(seen)

            def make_dense(encoder, strides=strides, window=_WHOLE):
                size = images.crop(window).image_shape[:2]
                part = center if center.size == 1 else center[window]
                return DenseEncoder(encoder, size, part, light, strides, device)

            parts = (seen, center, light, make_dense, device)
            # A copy, so that what follows is as if this lam had been given.
            lam, lam_results = self._choose_lam(*parts, copy.deepcopy(rng))
            trained = copy.copy(self)
            trained.lam = lam
            encoder, curve, watch = trained._train_encoder(*parts, rng)
            training = Training(encoder, curve, watch, lam, lam_results)
            parts = (images, seen, known, owners)
            with self._kept_if_unfinished(training):
                inspector, scores = self._make_bank(*parts, make_dense(encoder), rng)
                if curve and are_tied(scores):
                    warn_of_ties(self.training)
                    encoder, watch.kept = watch.first_encoder, 0
                    dense = make_dense(encoder)
                    inspector, scores = self._make_bank(*parts, dense, rng)
        check_scores(scores)
        if groups is None:
            warn_if_grouped(images)

        self.encoder_ = encoder
        self.lam_ = lam
        self.lam_results_ = lam_results
        self.center_ = center
        self.image_shape_ = tuple(images.image_shape)
        self.n_features_in_ = _n_values(images)
        self.patch_sizes_ = encoder.patch_sizes
        self.strides_ = strides
        self.loss_curve_ = curve
        self.n_iter_ = len(next(iter(curve.values()), ()))
        self.best_iter_ = watch.kept
        self.validation_steps_ = np.array(watch.steps, dtype=int)
        self.validation_scores_ = np.array(watch.scores)
        self._n_averaged = inspector.n_averaged
        self._set_seen({known[i] for i in shown} if curve else set())
        self._calibrate(scores, groups, calibrates)
        self._set_bank(inspector.indexes, known, owners)
        self._units = inspector.units
        self._light = light
        self._aggregation = self.aggregation
        self._unfinished = None
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y=None, groups=None):
        """Let the patches of more normal images join the bank, without training.

        For normal images that look different from those of `fit`: another batch of
        material, another season's light. The encoder stays as it is, and with it what
        it takes for a difference: where much has changed, `fit` again. Of the
        parameters only `bank_size`, `contamination`, `neighbors`, `tolerance`,
        `device`, `n_jobs`, `random_state` and `verbose` are looked at. Nothing changes
        until all is done.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Normal images of the shape of those of `fit`. Those that the bank holds
            already are left out.
        y : array-like of shape (n_images,) or (n_images, height, width), default=None
            As for `fit`: images that it calls abnormal are left out.
        groups : array-like of shape (n_images,), default=None
            As for `fit`; needed if, and only if, `fit` was given groups. A label that
            the estimator knows continues that group. Images of new groups calibrate:
            the encoder has not seen them.

        Returns
        -------
        self : PatchSVDD
            The estimator: `bank_size_`, `training_scores_`, to which the scores of the
            new images are appended, `calibrates_`, `groups_` and `offset_` have
            changed. One that is not fitted yet is fitted.
        """
        if not hasattr(self, "encoder_"):
            return self.fit(X, y, groups)
        images = self._check_scored_images(X)
        groups = self._check_more_groups(groups, len(images))
        normal = find_normal(y, len(images))
        images, groups = images.take(normal), None if groups is None else groups[normal]
        digests = list_digests(images)
        first = {digest: i for i, digest in reversed(list(enumerate(digests)))}
        new = sorted(i for digest, i in first.items() if digest not in self._known)
        if not new:
            return self
        images, known = images.take(new), self._known + [digests[i] for i in new]
        groups, owners, calibrates = self._continue_groups(groups, new)
        rng = check_random_state(self.random_state)
        with torch_threads(self.n_jobs):
            inspector = self._inspector()
            dense = inspector.encoder
            former = [index.bank() for index in self._indexes]
            with self._progress("adding images", len(new)) as progress:
                banks = collect_banks(
                    dense,
                    images,
                    self._units,
                    self.bank_size,
                    rng,
                    former,
                    n_former=len(self._known),
                    progress=progress,
                    owners=owners[len(self._known) :],
                )
            indexes = self._index_banks(banks, dense.device, rng)
            inspector = inspector.extend(indexes, known, owners)
            scores = inspector.scores(images)
        scores = np.concatenate([self.training_scores_, scores])
        check_scores(scores)
        self._calibrate(scores, groups, calibrates)
        self._set_bank(inspector.indexes, known, owners)
        return self

    def fit_predict(self, X, y=None, groups=None):
        """Fit to images and tell which of them are abnormal.

        Each image is scored against a bank that does not hold it: those that are learnt
        from without their own patches, those that y calls abnormal as new images. With
        ``contamination="auto"``, which trusts the training images, all that are learnt
        from are normal.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        y : array-like of shape (n_images,) or (n_images, height, width), default=None
            As for `fit`: images that it calls abnormal are not learnt from.
        groups : array-like of shape (n_images,), default=None
            As for `fit`.

        Returns
        -------
        labels : ndarray of shape (n_images,)
            -1 for abnormal images, 1 for normal ones, of all images in X.
        """
        self.fit(X, y, groups)
        if len(self.training_scores_) == len(X):  # all are learnt from
            return _labels(self.training_scores_ - self.offset_)
        images = self._check_images(X)
        learnt = dict(zip(self._known, self.training_scores_, strict=True))
        scores = np.array([learnt.get(x, np.nan) for x in list_digests(images)])
        is_new = np.isnan(scores)
        if is_new.any():
            with torch_threads(self.n_jobs):
                new = images.take(np.flatnonzero(is_new))
                scores[is_new] = self._inspector().scores(new)
        return _labels(scores - self.offset_)

    def score_samples(self, X):
        """Score images: high is normal, low is abnormal.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.

        Returns
        -------
        scores : ndarray of shape (n_images,)
            Minus the maximum of each image's anomaly map, at the size at which it is
            inspected. At most 0.
        """
        images = self._check_scored_images(X)
        with torch_threads(self.n_jobs):
            return self._inspector().scores(images)

    def decision_function(self, X):
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

    def predict(self, X):
        """Tell normal images from abnormal ones.

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

    def p_values(self, X):
        """Tell how unusual images would be among normal ones.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.

        Returns
        -------
        p_values : ndarray of shape (n_images,)
            (1 + the number of training images that score no higher) / (1 + their
            number), each scored against a bank that does not hold it. Raising an alarm
            at ``p_values(X) <= a`` calls a share of about a of new normal images
            abnormal, for any a, if they are taken as the training images were. They are
            for new images: a training image would count itself. With `groups`,
            (1 + the sum over the calibrating groups of the fraction of their images
            that score no higher) / (1 + the number of these groups), which promises the
            same for images of new groups.
        """
        check_is_fitted(self)
        scores, groups = self._calibration_set()
        return p_values_from_scores(scores, self.score_samples(X), groups)

    def check_drift(self, X, defect_fraction=0.2, level=0.01):
        """Tell whether images still look as the threshold takes for granted.

        Give it a batch of recent images, without a choice by their scores. If it says
        that they have drifted, the threshold no longer keeps its promise:
        `partial_fit` with normal ones of them, or `fit` again.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            New images, as for `fit`, most of them normal. With `groups`, they count as
            one new group.
        defect_fraction : float in [0, 1), default=0.2
            Fraction of the images that may be abnormal, at most. Abnormal images, if
            they are not more, are not taken for drift.
        level : float in [0, 1), default=0.01
            How often images that have not drifted may be said to have, at most.

        Returns
        -------
        result : DriftResult
            With `p_value`, `statistic`, `drifted` and a one-line `verdict`; see
            :func:`skpatchsvdd.drift.drift_test`.
        """
        check_is_fitted(self)
        scores, groups = self._calibration_set()
        return drift_test(
            scores,
            self.score_samples(X),
            groups,
            defect_fraction=defect_fraction,
            level=level,
        )

    def predict_mask(self, X, alpha=None):
        """Tell normal pixels from abnormal ones.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        alpha : float in (0, 0.5], default=None
            Share of normal images that any pixel of which may be called abnormal: a
            large one gives larger masks. None is the threshold of `predict`, so that an
            image is abnormal if and only if a pixel of it is.

        Returns
        -------
        masks : ndarray of bool of shape (n_images, height, width) or list of ndarray
            True at abnormal pixels, at the size of the images that came in.
        """
        check_is_fitted(self)
        offset = self.offset_
        if alpha is not None:
            if not isinstance(alpha, Real) or not 0 < alpha <= 0.5:
                raise ValueError(f"alpha must be in (0, 0.5], got {alpha!r}.")
            scores, groups = self._calibration_set()
            offset = threshold_from_scores(scores, alpha, groups, name="alpha")
        images, maps = self._inspect(X)
        masks = [
            cut_map(x, size, np.float64(-offset))
            for x, size in zip(maps, images.sizes, strict=True)
        ]
        return np.stack(masks) if images.came_in_one_size else masks

    def anomaly_map(self, X, scale=None):
        """Score every pixel: high is abnormal, low is normal.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        scale : int, default=None
            One of `patch_sizes_`, for the map of that scale alone. None joins the
            maps of all scales.

        Returns
        -------
        maps : ndarray of shape (n_images, height, width) or list of ndarray
            float32, at the size of the images that came in; a list of maps for a list
            of images of unequal size.
        """
        images, maps = self._inspect(X, scale)
        maps = [resize_map(x, size) for x, size in zip(maps, images.sizes, strict=True)]
        return np.stack(maps) if images.came_in_one_size else maps

    def embed(self, X, patch_size):
        """Encode all patches of images.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels])
            Images, as for `fit`.
        patch_size : int
            One of `patch_sizes_`.

        Returns
        -------
        features : ndarray of shape (n_images, rows, cols, D)
            Row i and column j belong to the patch whose top left pixel is
            (i * stride, j * stride).
        """
        images = self._check_scored_images(X)
        scale = self._check_scale(patch_size, "patch_size")
        with torch_threads(self.n_jobs):
            dense = self._inspector().encoder
            batches = images.batches(dense.batch_size)
            features = [dense.encode(batch)[scale].cpu() for _, batch in batches]
        return torch.cat(features).numpy()

    def _inspect(self, X, scale=None):
        """Return images and the list of their maps, at the size they are inspected."""
        images = self._check_scored_images(X)
        if scale is not None:
            self._check_scale(scale, "scale")
        with torch_threads(self.n_jobs):
            maps = self._inspector().maps(images, scale)
            return images, [one_map for batch in maps for one_map in batch]

    def _check_training_images(self, X, y, groups):
        images = self._check_images(X)
        n_given = len(images)
        groups = check_groups(groups, n_given)
        normal = find_normal(y, n_given)
        if len(normal) < n_given:
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
        check_count(groups)
        return images, groups

    def _split_groups(self, groups, known, device, rng):
        """Choose the groups to train on and those to calibrate on.

        Returns
        -------
        owners : ndarray of int of shape (n_images,)
            The number of each image's group; without groups, its own.
        shown : ndarray of int
            Places of the images to train on.
        calibrates : ndarray of bool of shape (n_images,)
        """
        everyone = np.arange(len(known))
        if groups is None:
            return everyone, everyone, np.ones(len(known), dtype=bool)
        owners = number_owners(groups)
        goes_on = self.warm_start and hasattr(self, "encoder_")
        former = self._seen if goes_on else set()
        unseen = find_unseen(owners, np.array([x in former for x in known]))
        if self._resolve("max_iter", device) == 0 or self.encoder == "raw":
            return owners, everyone, np.isin(owners, unseen)
        is_aside = np.isin(owners, choose_aside(owners, unseen, rng))
        return owners, np.flatnonzero(~is_aside), is_aside

    def _check_more_groups(self, groups, n_images):
        if groups is None and self.groups_ is not None:
            raise ValueError(
                "fit was given groups, and partial_fit was not. Pass groups, such as "
                "groups=['lot 7'] * len(X) for images of one new group."
            )
        if groups is not None and self.groups_ is None:
            raise ValueError(
                "partial_fit was given groups, and fit was not. Pass groups to fit "
                "too, so that it calibrates on groups that the encoder has not seen."
            )
        return check_groups(groups, n_images)

    def _continue_groups(self, groups, new):
        """Return groups, owners and who calibrates, of former and new images."""
        n_former = len(self._known)
        if groups is None:
            owners = np.arange(n_former + len(new))
            return None, owners, np.ones(len(owners), dtype=bool)
        owners = number_owners(groups[new], self.groups_)
        # A group that the encoder has seen does not calibrate, nor do its new images.
        seen = self._owners[~self.calibrates_]
        calibrates = np.concatenate([self.calibrates_, ~np.isin(owners, seen)])
        owners = np.concatenate([self._owners, owners])
        return np.concatenate([self.groups_, groups[new]]), owners, calibrates

    def _set_seen(self, digests):
        """Remember the images that the encoder has been trained on."""
        goes_on = self.warm_start and hasattr(self, "_seen")
        self._seen = digests | self._seen if goes_on else digests

    def _calibrate(self, scores, groups, calibrates):
        """Set the threshold, and what it and p-values come from."""
        chosen = None if groups is None else groups[calibrates]
        self.offset_ = threshold_from_scores(
            scores[calibrates], self.contamination, chosen
        )
        self.training_scores_ = scores
        self.groups_ = groups
        self.calibrates_ = calibrates

    def _calibration_set(self):
        """Return the scores that p-values come from, and their groups or None."""
        chosen = self.calibrates_
        groups = None if self.groups_ is None else self.groups_[chosen]
        return self.training_scores_[chosen], groups

    def _check_images(self, X):
        return check_images(X, image_shape=self.image_shape, image_size=self.image_size)

    def _check_scored_images(self, X):
        check_is_fitted(self)
        images = self._check_images(X)
        if images.image_shape != self.image_shape_:
            raise ValueError(
                f"X has images of shape {tuple(images.image_shape)}, but "
                f"{type(self).__name__} was fitted on images of shape "
                f"{self.image_shape_}: height, width, channels. Pass images of that "
                "shape; fit with image_size would resize height and width."
            )
        return images

    def _check_scale(self, value, name):
        if value not in self.patch_sizes_:
            raise ValueError(
                f"{name} must be one of {self.patch_sizes_}, got {value!r}."
            )
        return self.patch_sizes_.index(value)

    def _center_of(self, images):
        if self.training == "paper":
            return images.mean_image()
        return np.full((1, 1, 1), _MID_GREY, dtype=np.float32)

    def _resolve_inspection(self, name):
        """Return a parameter of inspection, or what its "auto" means so far."""
        value = getattr(self, name)
        kind = "raw" if self.encoder == "raw" else self.training
        return _AUTO_INSPECTION[kind][name] if value == "auto" else value

    def _make_bank(self, images, seen, known, owners, dense, rng):
        """Index the features of all images; score each without its own patches."""
        weight = self._resolve_inspection("place_weight")
        units = find_units(dense, seen, weight, rng)
        for size, unit in zip(dense.patch_sizes, units, strict=True):
            counts = "count" if unit > 0 else "do not count"
            self._log(f"places of patches of {size} {counts}")
        with self._progress("encoding images", len(images)) as progress:
            banks = collect_banks(
                dense,
                images,
                units,
                self.bank_size,
                rng,
                progress=progress,
                owners=owners,
            )
        indexes = self._index_banks(banks, dense.device, rng)
        inspector = Inspector(
            dense,
            indexes,
            known,
            # Of the images of some groups alone, the mean is no calibrating one's.
            len(known) if len(seen) == len(known) else 0,
            self.aggregation,
            units,
            self.tolerance,
            owners,
        )
        label = "scoring images, each without its own patches"
        with self._progress(label, len(images)) as progress:
            return inspector, inspector.scores(images, progress)

    def _set_bank(self, indexes, known, owners):
        sizes = map(len, indexes)
        self.bank_size_ = dict(zip(self.patch_sizes_, sizes, strict=True))
        self._indexes = indexes
        self._known = known
        self._owners = owners

    def _index_banks(self, banks, device, rng):
        indexes = []
        for bank in banks:
            seed = int(rng.randint(_MAX_SEED))
            self._log(f"indexing {len(bank.rows):,} patches")
            indexes.append(
                make_index(bank, self.neighbors, device, self.n_jobs, seed, self._log)
            )
        return indexes

    def _inspector(self):
        """Return what inspects images, the last one if nothing has changed since."""
        device = fallback_device(self.device)
        versions = [p._version for p in self.encoder_.parameters()]  # count changes
        made_for = (device, self.encoder_, versions, self._indexes, self.tolerance)
        kept = _INSPECTORS.get(self)
        if kept is None or kept[0] != made_for:
            kept = _INSPECTORS[self] = made_for, self._make_inspector(device)
        return kept[1]

    def _make_inspector(self, device):
        dense = DenseEncoder(
            self.encoder_,
            self.image_shape_[:2],
            self.center_,
            self._light,
            self.strides_,
            device,
        )
        return Inspector(
            dense,
            self._indexes,
            self._known,
            self._n_averaged,
            self._aggregation,
            self._units,
            self.tolerance,
            self._owners,
        )

    def _log(self, message, level=1):
        if self.verbose >= level:
            print(f"[{type(self).__name__}] {message}", flush=True)

    def _progress(self, label, total):
        return Progress(f"[{type(self).__name__}] {label}", total, self.verbose >= 1)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.image_shape is not None
        tags.input_tags.three_d_array = True
        return tags


def _labels(decision):
    return np.where(decision >= 0, 1, -1)


def _n_values(images):
    height, width = images.sizes[0]
    return int(height * width * images.image_shape[2])
