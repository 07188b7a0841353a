import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd._encoding.registry import make_encoder
from skpatchsvdd._training import crops, losses
from skpatchsvdd._training.crops import CropSampler
from skpatchsvdd._training.losses import (
    DIRECTIONS,
    DenseLoss,
    damage_loss,
    damaged_fraction,
    describe_pairs,
    distance,
    draw_pairs,
    find_nearest,
    grid_steps,
)
from skpatchsvdd._training.paper import (
    PatchSVDDLoss,
    position_loss,
    svdd_prime_loss,
)
from skpatchsvdd._utils import Draws


def make_encoder_and_images():
    generator = torch.Generator().manual_seed(SEED)
    encoder = make_encoder("hierarchical", 3, 8, 64, generator)
    return encoder, torch.rand(2, 100, 100, 3, generator=generator), generator


def make_dense(lam=0.5, damage_weight=2.0):
    encoder, images, generator = make_encoder_and_images()
    sampler = CropSampler(images, images.mean(dim=0), generator, 64, 0.3)
    objective = DenseLoss(encoder, lam, damage_weight, 3)
    objective.reset_parameters(generator)
    return encoder, sampler, objective


def test_the_paper_s_losses_by_hand():
    features = torch.tensor([[0.0, 0.0], [1.0, 1.0], [3.0, 4.0], [1.0, 1.0]])
    features.requires_grad_()
    loss = svdd_prime_loss(features)
    loss.backward()
    assert loss.item() == pytest.approx(2.5)
    assert torch.isfinite(features.grad).all()  # two are equal
    features = torch.tensor([[1.0, 2.0], [1.0, 0.0]])  # one pair, difference (0, 2)
    loss = position_loss(torch.nn.Identity(), features, torch.tensor([1]))
    assert loss.item() == pytest.approx(np.log(1 + np.exp(-2)))


def test_distance_by_hand_and_its_gradient_at_zero():
    x = torch.tensor([[3.0, 0.0], [1.0, 1.0]], requires_grad=True)
    y = torch.tensor([[0.0, 4.0], [1.0, 1.0]])
    result = distance(x, y)
    torch.testing.assert_close(result.detach(), torch.tensor([5.0, 0.0]))
    result.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_damage_loss_by_hand():
    plain = torch.tensor([[0.0], [10.0], [20.0], [40.0], [60.0]])
    # The second one is nearer to the third plain patch than to its own; the last two
    # are intact, and 1 and 3 away from where they were.
    seen_again = torch.tensor([[1.0], [17.0], [20.1], [41.0], [63.0]])
    # Fully, half, and too little damaged to count.
    fraction = torch.tensor([0.5, 0.015, 0.005, 0.0, 0.0])
    usual = (1 + 3) / (2 + 1)
    expected = (np.log(1 + usual / 1) + 0.5 * np.log(1 + usual / 3)) / (1 + 0.5 + 1)
    loss = damage_loss(plain, seen_again, fraction)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_damage_loss_compares_with_a_part_of_a_large_batch(monkeypatch):
    monkeypatch.setattr(losses, "_N_COMPARED", 2)
    plain = torch.tensor([[0.0], [10.0], [20.0], [30.0]])
    # Of the others, the first and the third are looked at.
    seen_again = torch.tensor([[19.0], [27.0], [26.0], [31.0]])
    fraction = torch.tensor([1.0, 1.0, 1.0, 0.0])
    nearest, usual = np.array([1, 7, 6]), 1 / 2
    loss = damage_loss(plain, seen_again, fraction)
    assert loss.item() == pytest.approx(np.log(1 + usual / nearest).sum() / 4, rel=1e-5)


def test_svdd_term_leaves_damaged_patches_out():
    _, _, objective = make_dense()
    x = torch.tensor([[0.0], [1.0], [10.0], [20.0]])  # each 10 or 19 from another
    fraction = torch.tensor([0.0, 0.2, 0.001, 0.0])
    svdd, _ = objective._contrast(x, x + torch.tensor([[2.0], [9], [9], [3]]), fraction)
    expected = (np.log(1 + 2 / 10) + np.log(1 + 3 / 19)) / (2 + 1)
    assert svdd.item() == pytest.approx(expected, rel=1e-4)


def test_find_nearest_equals_the_plain_way():
    generator = torch.Generator().manual_seed(SEED)
    x, others = (torch.randn(n, 8, generator=generator) for n in (50, 70))
    expected = torch.cdist(x, others).argmin(dim=1)
    assert torch.equal(find_nearest(x, others), expected)


def test_steps_from_the_middle_of_a_square_are_the_directions():
    steps = grid_steps(torch.arange(8), 3).tolist()
    assert [tuple(step) for step in steps] == list(DIRECTIONS)


@pytest.mark.parametrize("patch_size", [32, 64])
def test_pairs_lie_in_their_direction_and_inside(patch_size):
    draws = Draws(torch.Generator().manual_seed(SEED))
    first, second, direction = draw_pairs(16, 256, 128, patch_size, 2, draws)
    assert len(first) == 4096
    assert torch.equal(first[:, 0], second[:, 0])
    step = (second - first)[:, 1:]
    sign = torch.tensor(DIRECTIONS)[direction]
    assert torch.equal(step.sign(), sign)
    length = step.abs()[sign != 0]
    assert length.min() == 3 * patch_size // 8
    assert length.max() == patch_size // 2 - 1
    n_cells = (128 - patch_size) // 2 + 1
    for cells in (first[:, 1:], second[:, 1:]):
        assert cells.min() == 0
        assert cells.max() == n_cells - 1


@pytest.mark.parametrize("crop_size", [64, 66, 80, 100])
def test_pairs_of_small_crops_reach_as_far_as_they_can(crop_size):
    draws = Draws(torch.Generator().manual_seed(SEED))
    first, second, direction = draw_pairs(4, 512, crop_size, 64, 2, draws)
    n_cells = (crop_size - 64) // 2 + 1
    for cells in (first[:, 1:], second[:, 1:]):
        assert cells.min() >= 0
        assert cells.max() < n_cells
    if n_cells > 3:
        sign = torch.tensor(DIRECTIONS)[direction]
        assert torch.equal((second - first)[:, 1:].sign(), sign)


def test_classifiers_last_weight_is_normalised_and_fixed():
    encoder, _, generator = make_encoder_and_images()
    objective = PatchSVDDLoss(encoder, 0.5, 4)
    objective.reset_parameters(generator)
    last = objective.classifiers[0][-1]
    torch.testing.assert_close(last.weight.norm(dim=0), torch.ones(128))
    assert not last.weight.requires_grad
    assert last.bias.requires_grad


def test_a_task_of_weight_0_is_not_computed(monkeypatch):
    encoder, sampler, objective = make_dense(damage_weight=0.0)
    monkeypatch.setattr(crops, "damage_images", None)  # nor are defects drawn
    batch = objective.draw(sampler)
    monkeypatch.setattr(losses, "damage_loss", None)
    terms = objective(encoder, batch)
    assert not [name for name in terms if name.startswith("damage")]


def test_lam_weighs_the_svdd_terms_alone():
    terms = {"position": 1, "svdd": 0.25, "damage": 3, "scale": 0.1}
    expected = {f"{x}_{k}": terms[x] for k in (32, 64) for x in terms}
    assert make_dense(lam=0.25, damage_weight=3.0)[2].weights == expected


def test_dense_terms_do_not_reward_shrinking():
    _, _, objective = make_dense()
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(SEED))
    near, intact = x + 0.1, torch.zeros(64)
    svdd, scale = objective._contrast(x, near, intact)
    small, shrunk = objective._contrast(x / 100, near / 100, intact)
    assert small.item() == pytest.approx(svdd.item(), rel=1e-3)
    assert shrunk > scale + 10
    one_point = torch.zeros(64, 8)
    assert objective._contrast(one_point, one_point, intact)[0] > svdd


def test_dense_scale_term_is_least_at_a_deviation_of_a_half():
    _, _, objective = make_dense()
    x = torch.randn(4096, 8, generator=torch.Generator().manual_seed(SEED))
    intact = torch.zeros(4096)
    scales = [
        objective._contrast(x * std, x, intact)[1].item() for std in (0.25, 0.5, 1.0)
    ]
    assert scales[1] < 0.01
    assert min(scales[0], scales[2]) > 0.3


def test_pairs_know_how_much_of_their_patch_is_damaged():
    _, sampler, _ = make_dense()
    is_damaged = sampler.crops(6).is_damaged  # of two steps
    ends = draw_pairs(6, 50, 98, 32, 2, sampler.draws)
    table = damaged_fraction(is_damaged, 32, 2).flatten()
    described = describe_pairs(*ends, (34, 34), table, None, n_cells=3 * 34 * 34)
    for i in range(0, 300, 7):
        crop, row, col = ends[0][i].tolist()
        patch = is_damaged[crop, 0, 2 * row :, 2 * col :][:32, :32]
        assert described.damaged[i].item() == pytest.approx(patch.mean().item())
        assert described.cells[i, 0] == ((crop % 3) * 34 + row) * 34 + col


@pytest.mark.parametrize(("patch_size", "stride"), [(32, 2), (64, 2), (64, 8)])
def test_damaged_fraction_is_a_mean_over_each_patch(patch_size, stride):
    generator = torch.Generator().manual_seed(SEED)
    is_damaged = (torch.rand(2, 1, 98, 98, generator=generator) < 0.3).float()
    expected = torch.nn.functional.avg_pool2d(is_damaged, patch_size, stride)[:, 0]
    fraction = damaged_fraction(is_damaged, patch_size, stride)
    torch.testing.assert_close(fraction, expected)
