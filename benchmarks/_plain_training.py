"""The plain training loop, as the paper has it, that ours is compared with."""

import itertools

import numpy as np
import torch
from _hooks import DIRECTIONS

SIZES = (32, 64)


def plain_step(encoder, objective, optimizer, batch, device):
    batches, directions = batch
    pairs = [x.to(device).chunk(2) for x in batches]
    trios = zip(pairs, directions, strict=False)
    positions = [(*pair, direction.to(device)) for pair, direction in trios]
    terms = objective(encoder, (positions, pairs[len(positions) :]))
    loss = sum(objective.weights[name] * term for name, term in terms.items())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()  # the loss of each step is looked at


class PlainPairs(torch.utils.data.IterableDataset):
    """Pairs of patches cut out one by one on the host, as the paper draws them."""

    def __init__(self, pixels, center, seed, n_pairs):
        self.pixels, self.center = pixels, center
        self.seed, self.n_pairs = seed, n_pairs

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rng = np.random.default_rng([self.seed, worker.id if worker else 0])
        while True:
            positions = [self._position_pairs(rng, k) for k in SIZES]
            jitters = [self._jitter_pairs(rng, k) for k in SIZES]
            directions = [torch.tensor(pairs[1]) for pairs in positions]
            yield [p[0] for p in positions] + jitters, directions

    def _position_pairs(self, rng, k):
        firsts, seconds, directions = [], [], []
        for _ in range(self.n_pairs):
            image, row, col = self._draw(rng, k)
            direction = rng.integers(8)
            down, right = DIRECTIONS[direction] * rng.integers(3 * k // 4, k, 2)
            firsts.append(self._cut(image, row, col, k, rng))
            seconds.append(self._cut(image, row + down, col + right, k, rng))
            directions.append(direction)
        return torch.from_numpy(np.stack(firsts + seconds)), directions

    def _jitter_pairs(self, rng, k):
        shifts = range(-(k // 32), k // 32 + 1)
        shifts = [s for s in itertools.product(shifts, shifts) if s != (0, 0)]
        firsts, seconds = [], []
        for _ in range(self.n_pairs):
            image, row, col = self._draw(rng, k)
            down, right = shifts[rng.integers(len(shifts))]
            firsts.append(self._cut(image, row, col, k))
            seconds.append(self._cut(image, row + down, col + right, k))
        return torch.from_numpy(np.stack(firsts + seconds))

    def _draw(self, rng, k):
        n, height, width, _ = self.pixels.shape
        rows, cols = rng.integers(height - k + 1), rng.integers(width - k + 1)
        return rng.integers(n), rows, cols

    def _cut(self, image, row, col, k, rng=None):
        height, width, n_channels = self.pixels.shape[1:]
        row, col = np.clip(row, 0, height - k), np.clip(col, 0, width - k)
        square = np.s_[row : row + k, col : col + k]
        patch = self.pixels[image][square] / np.float32(255) - self.center[square]
        if rng is not None:
            patch = patch + rng.normal(0, 0.02, n_channels)
            patch = patch + rng.normal(0, 0.02, patch.shape)
        return patch.transpose(2, 0, 1).astype(np.float32)
