"""The default training: an embedding of pretrained features."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from settings import SEED

from skpatchsvdd import PatchSVDD, Training
from skpatchsvdd._encoding.procedural import ProceduralEncoder
from skpatchsvdd._encoding.scales import SCALES
from skpatchsvdd._training import loop
from skpatchsvdd._training.crops import CropSampler
from skpatchsvdd._training.embedding import EmbeddingLoss, FeaturePool
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.metrics import detection_auroc

N_PAIRS = 200


@pytest.fixture(scope="module")
def gears():
    train = make_textures(10, image_size=96, kind="gear", random_state=SEED)
    test = make_textures(
        12, image_size=96, kind="gear", anomaly_fraction=0.5, random_state=SEED + 1
    )
    return train.images, test


@pytest.fixture(scope="module")
def encoder():
    return ProceduralEncoder.make_pretrained(3, (96, 96), 32)


@pytest.fixture(scope="module")
def pool(gears, encoder):
    return make_pool(encoder, torch.from_numpy(gears[0]))


def make_pool(encoder, images, damages=True, roi=None):
    generator = torch.Generator().manual_seed(SEED)
    center = torch.full((1, 1, 1), 0.5)
    sampler = CropSampler(images, center, generator, encoder.config[2], 1.0, roi)
    return FeaturePool(encoder, sampler, damages, 64 * 16)


def draw_matrices(n_features, seed=SEED):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n_features, 64, generator=generator) for _ in SCALES]


def test_losses_are_what_they_are_defined_to_be(encoder, pool):
    matrices = draw_matrices(32)
    model = encoder.embed(matrices)
    generator = torch.Generator().manual_seed(SEED)
    loss = EmbeddingLoss(model, 0.3, 3.0, N_PAIRS, pool.tables)
    loss.reset_parameters(generator)
    batch = loss.draw(pool)
    found = loss(model, batch)
    for i, size in enumerate(SCALES):
        assert loss.weights[f"svdd_{size}"] == 0.3
        table, matrix, pairs = pool.tables[i], matrices[i], batch[i]
        p, again, neighbour = (table[x] @ matrix.T for x in pairs.cells.T)
        logits = loss.classifiers[i](p - neighbour)
        position = F.cross_entropy(logits, pairs.direction)
        far = torch.cdist(p, p)[range(N_PAIRS), np.roll(range(N_PAIRS), N_PAIRS // 2)]
        moved = (p - again).norm(dim=1)
        intact = pairs.damaged == 0
        svdd = torch.log1p(moved / far)[intact].sum() / (intact.sum() + 1)
        usual = moved[intact].sum() / (intact.sum() + 1)
        nearest = torch.cdist(again, p).min(dim=1).values
        weight = (pairs.damaged / 0.03).clamp(max=1) * (pairs.damaged > 0.01)
        damage = torch.log1p(usual / nearest)
        damage = (weight * damage).sum() / (weight.sum() + 1)
        assert weight.sum() > 1
        for name, value in (("position", position), ("svdd", svdd), ("damage", damage)):
            torch.testing.assert_close(
                found[f"{name}_{size}"], value, rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize("n_features", [16, 64])
def test_distances_are_half_initial_and_half_learnt(gears, encoder, n_features):
    model = encoder.embed(draw_matrices(n_features, SEED + 1))
    initial, learnt = model.embedding[1].double(), draw_matrices(n_features)
    pool = make_pool(model, torch.from_numpy(gears[0]))
    joined = pool.join_features(model.embed(learnt))
    assert joined.embedding[0].shape == (n_features, 64)
    x = pool.tables[1][: len(pool.tables[1]) // 2].double()
    x = x - x.mean(dim=0)
    first, y = x @ initial.T, x @ learnt[1].T.double()
    y *= (first.square().sum() / y.square().sum()).sqrt()
    side_by_side = torch.cat([first, y], 1)
    expected = torch.cdist(side_by_side[:50], side_by_side[50:100]) / 2**0.5
    z = x @ joined.embedding[1].T.double()
    found = torch.cdist(z[:50], z[50:100])
    if n_features == 64:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    else:  # the main axes: no other so few hold more
        _, values, _ = torch.linalg.svd(side_by_side / 2**0.5)
        kept = values[:n_features].square().sum()
        torch.testing.assert_close(z.square().sum(), kept, rtol=1e-4, atol=0)
        assert (found <= expected + 1e-6).all()


def test_a_collapsed_embedding_leaves_the_initial_one(gears, encoder):
    model = encoder.embed(draw_matrices(64))
    pool = make_pool(model, torch.from_numpy(gears[0]))
    joined = pool.join_features(model.embed([torch.zeros(64, 64)] * len(SCALES)))
    for found, initial in zip(joined.embedding, model.embedding, strict=True):
        expected = initial.T @ initial / 2
        torch.testing.assert_close(found.T @ found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.wide
def test_training_lowers_the_losses_and_finds_defects(gears):
    train, test = gears
    est = PatchSVDD(random_state=SEED).fit(train)
    assert est.n_iter_ == 200
    assert est.encoder_.config == (3, 64, max(SCALES))
    for name, curve in est.loss_curve_.items():
        assert curve[-20:].mean() < curve[:20].mean(), name
    assert detection_auroc(test.labels, est.score_samples(test.images)) > 0.9


def test_the_damage_term_can_be_left_out(gears):
    training = Training(damage_weight=0)
    est = PatchSVDD(random_state=SEED, training=training).fit(gears[0])
    names = [x[:-3] for x in est.loss_curve_ if x.endswith("_16")]
    assert names == ["position", "svdd"]


def test_lam_and_embedding_dim_count(gears):
    train, test = gears
    scores = []
    for given in ({}, {"lam": 30.0}, {"embedding_dim": 8}, {"max_iter": 0}):
        est = PatchSVDD(random_state=SEED, **given).fit(train)
        length = given.get("embedding_dim", 64)
        assert est.embed(test.images[:1], est.scales_[1]).shape[-1] == length
        scores.append(est.score_samples(test.images))
    for i, some in enumerate(scores):
        for other in scores[:i]:
            assert abs(some / other - 1).max() > 1e-4


def test_there_are_no_more_numbers_than_features_have(gears):
    with pytest.raises(ValueError, match=r"embedding_dim must be at most 64 .* got 65"):
        PatchSVDD(embedding_dim=65).fit(gears[0])


def test_a_warm_start_goes_on_from_the_embedding(gears):
    est = PatchSVDD(random_state=SEED, warm_start=True).fit(gears[0])
    matrix = est.encoder_.embedding[0].clone()
    assert torch.equal(
        est.set_params(max_iter=0).fit(gears[0]).encoder_.embedding[0], matrix
    )
    est.set_params(max_iter=2).fit(gears[0])
    assert not torch.equal(est.encoder_.embedding[0], matrix)
    with pytest.raises(ValueError, match="warm_start=True cannot go on"):
        est.set_params(embedding_dim=8).fit(gears[0])


def test_known_defects_teach_the_embedding(gears):
    train, test = gears
    bad = np.flatnonzero(test.labels == -1)[:2]
    X = np.concatenate([train, test.images[bad]])
    y = [1] * len(train) + [-1, -1]
    masks = [None] * len(train) + list(test.masks[bad])
    est = PatchSVDD(random_state=SEED)
    plain = est.fit(train).encoder_.embedding[0].clone()
    taught = est.fit(X, y, masks=masks).encoder_.embedding[0]
    assert abs(taught - plain).max() > 1e-4


@pytest.mark.parametrize(
    "given", [{"early_stopping": True}, {"training__damage_weight": 0}]
)
def test_a_small_roi_is_checked(gears, given):
    roi = np.zeros((96, 96))
    roi[20:56, 30:66] = 1
    est = PatchSVDD(roi=roi, patch_size=32, random_state=SEED).set_params(**given)
    assert np.isfinite(est.fit(gears[0]).validation_scores_).all()


def test_what_is_not_looked_at_teaches_nothing(gears, encoder):
    """Neither the check nor the mean of distances depends on it."""
    images = torch.from_numpy(gears[0])
    roi = torch.zeros(96, 96, dtype=torch.bool)
    roi[:24] = True
    pools = []
    for hidden in (images, images.clone()):
        if pools:
            hidden[:, 24:] = 255 - hidden[:, 24:]
        pools.append(make_pool(encoder, hidden, False, roi))
    first, second = (x.join_features(encoder).embedding for x in pools)
    for a, b, seen in zip(first, second, pools[0].seen, strict=True):
        assert seen.any()
        torch.testing.assert_close(a, b)
    assert not pools[0].seen[0].all()


def test_batches_are_drawn_in_blocks(gears, monkeypatch):
    monkeypatch.setattr(loop, "_N_DRAWN", 3)
    est = PatchSVDD(max_iter=7, random_state=SEED).fit(gears[0])
    assert est.n_iter_ == 7


def test_images_of_a_single_patch_are_trained_on():
    size = min(SCALES)
    X = make_textures(4, image_size=32, random_state=SEED).images[:, :size, :size]
    est = PatchSVDD(random_state=SEED).fit(X)
    assert np.isfinite(est.training_scores_).all()
    assert est.patch_sizes_ == (size,)
    assert not est.loss_curve_[f"position_{size}"].any()  # there are no directions


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.wide
def test_a_gpu_trains_as_a_cpu_does(gears):
    train, test = gears
    est, scores = PatchSVDD(random_state=SEED), []
    for device in ("cpu", "cuda"):
        est.set_params(device=device).fit(train)
        scores.append(est.score_samples(test.images))
    np.testing.assert_allclose(*scores, rtol=2e-2)
