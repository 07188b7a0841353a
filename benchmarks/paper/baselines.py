"""What a scikit-learn user might take instead of PatchSVDD, on the same images.

Detectors of rows see the principal components of small images. Deep SVDD and the
autoencoder are small plain versions, one network each. Scores are high for normal.
"""

import inspect
import itertools

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor
from sklearn.svm import OneClassSVM
from torch import nn

ROW_SIZE = 64
VARIANCE = 0.95
BATCH = 32


def make_baseline(name, seed, device, **params):
    """Make a baseline with `fit`, `score_samples` and, for some, `anomaly_map`."""
    return BASELINES[name](seed, device, **params)


class OnPCA:
    """A detector of rows, on the principal components of images of 64 x 64.

    Parameters
    ----------
    make_detector : callable
        ``make_detector(n_rows, n_features)`` makes a detector of rows.
    seed : int
        Of the decomposition.
    """

    def __init__(self, make_detector, seed):
        self.make_detector = make_detector
        self.pca = PCA(VARIANCE, svd_solver="full", random_state=seed)

    def fit(self, images):
        """Decompose, then fit the detector."""
        x = self.pca.fit_transform(self._rows(images))
        self.detector = self.make_detector(*x.shape).fit(x)
        return self

    def score_samples(self, images):
        """Score images: high is normal."""
        x = self.pca.transform(self._rows(images))
        if hasattr(self.detector, "score_samples"):
            return self.detector.score_samples(x)
        return -self.detector.decision_function(x)  # PyOD: high is abnormal

    def _rows(self, images):
        return shrink(images, ROW_SIZE).flatten(1).numpy()


def isolation_forest(seed, device):
    return OnPCA(lambda *shape: IsolationForest(random_state=seed), seed)


def one_class_svm(seed, device):
    """Make a one-class SVM: with an RBF kernel the same as the classic SVDD."""
    return OnPCA(lambda *shape: OneClassSVM(gamma="scale", nu=0.1), seed)


def local_outlier_factor(seed, device):
    def make_detector(n_rows, n_features):
        return LocalOutlierFactor(n_neighbors=min(20, n_rows - 1), novelty=True)

    return OnPCA(make_detector, seed)


def pyod_deep_svdd(seed, device):
    """Make PyOD's DeepSVDD, which takes rows; some versions ask for their length."""
    from pyod.models.deep_svdd import DeepSVDD

    def make_detector(n_rows, n_features):
        params = {"random_state": seed, "verbose": 0}
        if "n_features" in inspect.signature(DeepSVDD).parameters:
            params["n_features"] = n_features
        return DeepSVDD(**params)

    return OnPCA(make_detector, seed)


class Network:
    """What the two networks share: images as tensors, and the loop that trains.

    Parameters
    ----------
    seed : int
        Of the initial weights and the batches.
    device : torch.device
        Where to compute.
    n_steps : int
        Steps of Adam on batches of 32.
    """

    image_size = None
    learning_rate = None

    def __init__(self, seed, device, n_steps):
        self.seed, self.device, self.n_steps = seed, device, n_steps

    def fit(self, images):
        """Train on normal images."""
        x = self._tensor(images)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            self.net = self.make_net(x.shape[1]).to(self.device)
        self.prepare(x)
        self._train(x)
        self.net.eval()
        return self

    def prepare(self, x):
        """Do what comes before the first step."""

    def score_samples(self, images):
        """Score images: high is normal."""
        return -self._by_batch(self.errors, images)

    def _train(self, x):
        optimizer = torch.optim.Adam(
            self.net.parameters(), self.learning_rate, weight_decay=1e-6
        )
        generator = torch.Generator().manual_seed(self.seed)
        self.net.train()
        for _ in range(self.n_steps):
            places = torch.randint(len(x), (BATCH,), generator=generator)
            loss = self.errors(x[places.to(self.device)]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def _by_batch(self, call, images):
        batches = self._tensor(images).split(BATCH)
        return torch.cat([call(batch).cpu() for batch in batches]).numpy()

    def _tensor(self, images):
        return shrink(images, self.image_size).to(self.device)


class DeepSVDD(Network):
    """Deep SVDD of whole images: features are drawn to their first mean.

    Ruff et al., ICML 2018, one-class version: the LeNet of their CIFAR-10 experiments
    without biases, on 64 x 64 pixels, from random weights.
    """

    image_size = 64
    learning_rate = 1e-4

    def make_net(self, n_channels):
        """Three convolutions and one product, (n, c, 64, 64) to (n, 128)."""
        layers = []
        for n_in, n_out in ((n_channels, 32), (32, 64), (64, 128)):
            layers += [
                nn.Conv2d(n_in, n_out, 5, padding=2, bias=False),
                nn.BatchNorm2d(n_out, affine=False),
                nn.LeakyReLU(0.1),
                nn.MaxPool2d(2),
            ]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8192, 128, bias=False))

    @torch.no_grad()
    def prepare(self, x):
        """Set the centre; none of its numbers near 0, where weights of 0 would lead."""
        center = torch.cat([self.net(batch) for batch in x.split(BATCH)]).mean(dim=0)
        sign = torch.where(center < 0, -1.0, 1.0)
        self.center = torch.where(center.abs() < 0.1, 0.1 * sign, center)

    def errors(self, x):
        """Squared distances from the centre, (n,)."""
        return (self.net(x) - self.center).square().sum(dim=1)


class Autoencoder(Network):
    """A convolutional autoencoder of 128 x 128 pixels through 100 numbers, L2 error."""

    image_size = 128
    learning_rate = 1e-3

    def make_net(self, n_channels):
        """Five convolutions down to 4 x 4 and as many up."""
        widths = (n_channels, 32, 32, 64, 64, 128)
        down, up = [], []
        for n_in, n_out in itertools.pairwise(widths):
            down += [nn.Conv2d(n_in, n_out, 4, 2, 1), nn.LeakyReLU(0.2)]
            up = [nn.ConvTranspose2d(n_out, n_in, 4, 2, 1), nn.LeakyReLU(0.2), *up]
        code = [nn.Conv2d(128, 100, 4), nn.ConvTranspose2d(100, 128, 4)]
        return nn.Sequential(*down, *code, nn.LeakyReLU(0.2), *up[:-1])

    def errors(self, x):
        """Mean squared errors, (n,)."""
        return self._residuals(x).mean(dim=(1, 2, 3))

    def anomaly_map(self, images):
        """Score every pixel: high is abnormal."""
        size = tuple(images.shape[1:3])

        def enlarge(x):
            residuals = self._residuals(x)
            return F.interpolate(residuals, size, mode="bilinear")[:, 0]

        return self._by_batch(enlarge, images)

    def _residuals(self, x):
        return (self.net(x) - x).square().mean(dim=1, keepdim=True)  # (n, 1, h, w)


def shrink(images, size):
    """Return images as floats of 0..1, (n, channels, size, size)."""
    x = torch.from_numpy(np.ascontiguousarray(images))
    x = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)
    batches = [
        F.interpolate(batch.float(), (size, size), mode="bilinear", antialias=True)
        for batch in x.split(BATCH)
    ]
    return torch.cat(batches) / (1.0 if images.dtype.kind == "f" else _largest(images))


def _largest(images):
    return float(np.iinfo(images.dtype).max)


BASELINES = {
    "isolation_forest": isolation_forest,
    "one_class_svm": one_class_svm,
    "local_outlier_factor": local_outlier_factor,
    "pyod_deep_svdd": pyod_deep_svdd,
    "deep_svdd": DeepSVDD,
    "autoencoder": Autoencoder,
}
