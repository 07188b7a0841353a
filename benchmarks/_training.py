"""The training of what ships with the package: steps, averages, and going on."""

import copy
import math
import sys
import time
from pathlib import Path

import torch
from _common import machine_name, make_parser
from _drawing import stream

_WARM_UP = 200
_AVERAGED = 0.999
_SAVED_EVERY = 60.0  # seconds


def make_training_parser(doc, steps, batch):
    """Return a parser of what all trainings have in common."""
    parser = make_parser(doc)
    parser.add_argument("-o", "--output", required=True, help="weights to write")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument(
        "--minutes", type=float, help="train for so long, whatever steps that are"
    )
    parser.add_argument("--batch", type=int, default=batch, help="scenes a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=2e-3, help="peak step size")
    parser.add_argument("--restart", help="file to go on from, kept up to date")
    parser.add_argument(
        "--pause", type=float, help="minutes after which to stop, to go on later"
    )
    parser.add_argument("--log-every", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that draw, on the same device"
    )
    return parser


class Training:
    """All that changes while training, so that it can go on after an interruption.

    Parameters
    ----------
    network : Module
        What is trained, and averaged over the steps.
    helpers : Module or None
        What is trained beside it, and needed no more afterwards.
    args : Namespace
        Of a parser that `make_training_parser` has made.
    """

    def __init__(self, network, helpers, args):
        self._network, self._helpers, self._args = network, helpers, args
        self.averaged = copy.deepcopy(network).requires_grad_(False)
        parameters = [*network.parameters()]
        parameters += [] if helpers is None else helpers.parameters()
        self._optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.02)
        self._step, self._seconds = 0, 0.0
        if args.restart and Path(args.restart).exists():
            self._load(args.restart)

    def run(self, draw, n_each, measure):
        """Take all steps; return the seconds they took and the last losses.

        Parameters
        ----------
        draw, n_each
            See `stream`.
        measure : callable
            Returns the losses of what is drawn for a step, a dict, with their "sum".
        """
        args, device = self._args, torch.device(self._args.device)
        start = time.perf_counter() - self._seconds
        saved = stopped = time.perf_counter()
        drawn = stream(
            draw, n_each, args.seed, args.batch, device, self._step, args.workers
        )
        losses, done = {}, self._share_done(self._seconds)
        while done < 1:
            losses = self._take_step(measure(next(drawn)), done)
            now = time.perf_counter()
            done = self._share_done(now - start)
            if self._step % args.log_every == 0 or done >= 1:
                texts = "  ".join(f"{k} {float(v):.3f}" for k, v in losses.items())
                print(f"{self._step:6d}  {now - start:6.0f} s  {texts}", flush=True)
            if args.restart and now - saved > _SAVED_EVERY:
                self._save(args.restart, now - start)
                saved = now
            if args.pause and now - stopped > 60 * args.pause:
                self._save(args.restart, now - start)
                sys.exit(f"paused after {now - start:.0f} s; the same command goes on")
        return time.perf_counter() - start, {k: float(v) for k, v in losses.items()}

    def _share_done(self, seconds):
        """Return how much of the training is done, 0..1."""
        if self._args.minutes is None:
            return self._step / self._args.steps
        return seconds / (60 * self._args.minutes)

    def page(self, script, **others):
        """Return how the weights were made, for their file."""
        args = self._args
        length = {"steps": args.steps}
        if args.minutes is not None:
            length = {"minutes": args.minutes}
        options = length | {"batch": args.batch, "seed": args.seed} | others
        texts = [f"--{name} {value}" for name, value in options.items()]
        return {
            "command": f"benchmarks/{script} {' '.join(texts)}",
            "machine": machine_name(torch.device(args.device)),
        }

    def _take_step(self, losses, done):
        args, step = self._args, self._step
        warm = min(1.0, (step + 1) / _WARM_UP)
        rest = 0.5 * (1 + math.cos(math.pi * done))
        for group in self._optimizer.param_groups:
            group["lr"] = args.rate * warm * rest
        self._optimizer.zero_grad(set_to_none=True)
        losses["sum"].backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 5.0)
        self._optimizer.step()
        self._step += 1
        decay = min(_AVERAGED, self._step / (self._step + 10))
        with torch.no_grad():
            means, news = (
                [x for x in y.state_dict().values() if x.is_floating_point()]
                for y in (self.averaged, self._network)
            )
            torch._foreach_lerp_(means, news, 1 - decay)
        return {k: v.detach() for k, v in losses.items()}

    def _parts(self):
        parts = {"network": self._network, "averaged": self.averaged}
        parts |= {} if self._helpers is None else {"helpers": self._helpers}
        return parts | {"optimizer": self._optimizer}

    def _save(self, path, seconds):
        """Write all that is needed to go on."""
        content = {name: part.state_dict() for name, part in self._parts().items()}
        content |= {"step": self._step, "seconds": seconds}
        partial = Path(f"{path}.partial")
        torch.save(content, partial)
        partial.replace(path)

    def _load(self, path):
        content = torch.load(path, map_location=self._args.device, weights_only=True)
        for name, part in self._parts().items():
            part.load_state_dict(content[name])
        self._step, self._seconds = content["step"], content["seconds"]
