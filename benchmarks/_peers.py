"""Models of anomalib and ours, as bench_peers runs them: fit, inspect, save.

Each takes images of uint8, (n, height, width, 3), and gives scores and maps that are
high for abnormal. They run with their own default settings: what is around a network
in anomalib, its engine, loggers and checkpoints, is left out.
"""

import warnings

import numpy as np
import torch
from _common import stopwatch
from torch.optim.lr_scheduler import StepLR

from skpatchsvdd import PatchSVDD

# What the backbones were trained with.
_MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
_STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
# Steps of EfficientAD in its paper, and after which part of them it learns slower.
N_STEPS = 70_000
_SLOWER_AFTER = 0.95
# Patches that PatchCore keeps, the default of anomalib.
_KEPT = 0.1
# Images that go through a network at once, as they do by default in anomalib.
_BATCH = 32


class Ours:
    """PatchSVDD as it is by default; its weights come with it."""

    name = "PatchSVDD"
    fitted = "measured"
    remaining_s = 0.0

    def __init__(self, weights, n_steps):
        self.est = PatchSVDD(random_state=0, device="cpu")

    def fit(self, images):
        self.est.fit(images)

    def inspect(self, images):
        seen = self.est.inspect(images)
        return -seen.scores, np.stack(seen.maps)

    def save(self, path):
        self.est.save(path)


class AnomalibModel:
    """What the models of anomalib share."""

    fitted = "measured"
    remaining_s = 0.0

    def __init__(self, weights, n_steps):
        torch.manual_seed(0)
        self.weights, self.n_steps = weights, n_steps
        self.network = self.make()

    def inspect(self, images):
        with torch.inference_mode():
            found = [self.network(self.normalize(x)) for x in batches(images, _BATCH)]
        scores = torch.cat([x.pred_score.flatten() for x in found])
        return scores.numpy(), torch.cat([x.anomaly_map[:, 0] for x in found]).numpy()

    def save(self, path):
        torch.save(self.network.state_dict(), path)

    def normalize(self, x):
        return (x - _MEAN) / _STD


class BackboneModel(AnomalibModel):
    """What those with a pretrained backbone share: `weights` are its file, of timm."""

    def make(self):
        network = self.make_network()
        if self.weights:
            load(network.feature_extractor.feature_extractor, self.weights)
        return network

    def fit(self, images):
        self.network.train()
        for x in batches(images, _BATCH):
            self.network(self.normalize(x))
        self.learn()
        self.network.eval()


class PatchCore(BackboneModel):
    """Distances to a tenth of all patches, WideResNet-50-2."""

    name = "PatchCore"

    def make_network(self):
        from anomalib.models.image.patchcore.torch_model import PatchcoreModel

        return PatchcoreModel(layers=["layer2", "layer3"], pre_trained=False)

    def learn(self):
        self.network.subsample_embedding(_KEPT)


class PaDiM(BackboneModel):
    """A Gaussian at each position, ResNet-18."""

    name = "PaDiM"

    def make_network(self):
        from anomalib.models.image.padim.torch_model import PadimModel

        return PadimModel(pre_trained=False)

    def learn(self):
        self.network.fit()


class EfficientAD(AnomalibModel):
    """A student and an autoencoder, which follow a teacher for 70,000 steps.

    Some of them are run, on noise in place of photographs from ImageNet, and tell how
    long all would take. `weights` are those of a network fitted to the category.
    """

    name = "EfficientAD-S"

    def make(self):
        from anomalib.models.image.efficient_ad.torch_model import EfficientAdModel

        self.fitted = f"{self.n_steps} of {N_STEPS:,} steps, multiplied"
        return EfficientAdModel()

    def normalize(self, x):
        return x  # the networks do so themselves

    def fit(self, images):
        network = self.network.train()
        network.mean_std.update(self.measure_teacher(images))
        self.train(images)
        network.eval().quantiles.update(self.find_quantiles(images[::10]))
        if self.weights:
            load(network, self.weights)

    def measure_teacher(self, images):
        """Return mean and deviation of the teacher's channels."""
        with torch.no_grad():
            found = [self.network.teacher(x) for x in batches(images, 1)]
        total, squares, n = 0, 0, 0
        for y in found:
            total, squares = total + y.sum((0, 2, 3)), squares + (y**2).sum((0, 2, 3))
            n += y[:, 0].numel()
        mean = total / n
        std = (squares / n - mean**2).sqrt()
        return {"mean": mean[None, :, None, None], "std": std[None, :, None, None]}

    def train(self, images):
        """Run some steps, the first of them to warm up, and estimate the others."""
        network = self.network
        parameters = [*network.student.parameters(), *network.ae.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=1e-4, weight_decay=1e-5)
        schedule = StepLR(optimizer, int(_SLOWER_AFTER * N_STEPS), gamma=0.1)
        seconds = []
        for i in range(self.n_steps + 1):
            [x] = batches(images[i % len(images)][None], 1)
            with stopwatch() as step_s:
                optimizer.zero_grad()
                sum(network(x, torch.rand_like(x))).backward()
                optimizer.step()
                schedule.step()
            seconds += step_s
        self.remaining_s = (N_STEPS - self.n_steps - 1) * float(np.mean(seconds[1:]))

    def find_quantiles(self, images):
        """Return the quantiles of normal maps that both kinds of maps are scaled by."""
        with torch.no_grad():
            maps = [self.network.get_maps(x) for x in batches(images, 1)]
        found = {}
        for name, own in zip(("st", "ae"), zip(*maps, strict=True), strict=True):
            values = torch.cat(own).numpy()
            for letter, q in (("a", 0.9), ("b", 0.995)):
                value = float(np.quantile(values, q))
                found[f"q{letter}_{name}"] = torch.tensor(value)
        return found


MODELS = {
    "patchsvdd": Ours,
    "patchcore": PatchCore,
    "padim": PaDiM,
    "efficientad": EfficientAD,
}


def batches(images, size):
    """Yield images as tensors (n, 3, height, width) from 0 to 1."""
    for i in range(0, len(images), size):
        x = torch.from_numpy(images[i : i + size]).flatten(3).movedim(3, 1) / 255
        yield x.expand(-1, 3, -1, -1).contiguous()


def load(network, path):
    """Load weights from a file of torch or safetensors into a network.

    The file may hold more than the network, such as a classifier, but not less.
    """
    if str(path).endswith(".safetensors"):
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)
    state = state.get("state_dict", state)
    state = {name.removeprefix("model."): value for name, value in state.items()}
    missing = sorted(set(network.state_dict()) - set(state))
    if missing:
        raise ValueError(
            f"{path} lacks {len(missing)} arrays of {type(network).__name__}, such as "
            f"{missing[0]!r}. Pass the weights that anomalib downloads."
        )
    network.load_state_dict(state, strict=False)


def import_anomalib():
    """Import anomalib, beside a build of torch that torchvision is not for, too.

    pip's torchvision is compiled for a GPU, and its operators do not load beside a CPU
    build. No model here uses them; an import asks for the names of two.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchvision  # noqa: F401
        except RuntimeError:
            for name in ("nms", "qnms"):
                torch.library.define(
                    f"torchvision::{name}",
                    "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
                )
        import anomalib.models.image  # noqa: F401
