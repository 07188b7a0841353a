"""Images drawn ahead of training, by processes of their own.

Drawing a scene takes thousands of small operations: a GPU waits for them more than it
computes, so several processes draw at once. What is drawn depends on the seed and its
number alone, not on how many processes there are.
"""

import itertools
import queue
import threading

import numpy as np
import torch
from procedural import make_materials

# Lists that wait in the training process.
_AHEAD = 3
_N_SEEDS = 2**32


def stream(draw, n_each, seed, batch, device, first_step=0, n_workers=0):
    """Yield what is drawn, one for each step from `first_step` on, for ever.

    Parameters
    ----------
    draw : callable
        ``draw(generator, batch, materials)`` returns a list of `n_each` tuples of
        tensors, for as many steps; a function of a module, which workers import.
    n_each : int
        Steps that are drawn for at a time.
    seed, batch : int
        Of all random draws, and scenes a step.
    device : torch.device
        Where images are drawn and come to.
    first_step : int
        Steps that need nothing.
    n_workers : int
        Processes that draw; 0 draws in this one.
    """
    first, done = divmod(first_step, n_each)
    if n_workers:
        lists = _receive(draw, seed, batch, device, first, n_workers)
    else:
        materials = make_materials(device)
        lists = (_draw(draw, seed, batch, materials, i) for i in itertools.count(first))
    return itertools.islice(itertools.chain.from_iterable(lists), done, None)


def _draw(draw, seed, batch, materials, i):
    """Return the i-th list."""
    state = np.random.SeedSequence([seed, i]).generate_state(1, np.uint64)
    generator = torch.Generator(materials.color.device).manual_seed(int(state[0] >> 1))
    return draw(generator, batch, materials)


def _receive(draw, seed, batch, device, first, n_workers):
    """Yield what workers draw, in order; a thread reads ahead."""
    context = torch.multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(n_workers)]
    for i, (_, end) in enumerate(pipes):
        arguments = (draw, seed, batch, str(device), first + i, n_workers, end)
        context.Process(target=_work, args=arguments, daemon=True).start()
        end.close()
    waiting = queue.Queue(_AHEAD)

    def read():
        try:
            for pipe, _ in itertools.cycle(pipes):
                waiting.put(pipe.recv())
        except EOFError:
            waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (lists := waiting.get()) is not None:
        yield [[torch.from_numpy(x).to(device) for x in arrays] for arrays in lists]
    raise RuntimeError("a process that draws has ended, see its message above.")


def _work(draw, seed, batch, device, first, step, end):
    """Draw every `step`-th list, and send it, until nobody reads."""
    torch.set_num_threads(1)
    materials = make_materials(torch.device(device))
    try:
        for i in itertools.count(first, step):
            drawn = _draw(draw, seed, batch, materials, i)
            end.send([[x.cpu().numpy() for x in tensors] for tensors in drawn])
    except (BrokenPipeError, KeyboardInterrupt):
        pass
