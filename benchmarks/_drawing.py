"""Views drawn ahead of training, by processes of their own.

Drawing a scene takes thousands of small operations: a GPU waits for them more than it
computes, so several processes draw at once. What is drawn depends on the seed and its
number alone, not on how many processes there are.
"""

import itertools
import queue
import threading

import numpy as np
import torch
from _views import N_EACH, Views, draw_views

from skpatchsvdd._formulas import make_materials

# Lists of views that wait in the training process.
_AHEAD = 3
_N_SEEDS = 2**32


def stream_views(seed, batch, device, first_step=0, n_workers=0):
    """Yield views, one for each step from `first_step` on, for ever.

    Parameters
    ----------
    seed, batch : int
        Of all random draws, and scenes a step.
    device : torch.device
        Where views are drawn and come to.
    first_step : int
        Steps whose views are not needed.
    n_workers : int
        Processes that draw; 0 draws in this one.
    """
    first, done = divmod(first_step, N_EACH)
    if n_workers:
        lists = _receive(seed, batch, device, first, n_workers)
    else:
        materials = make_materials(device)
        lists = (_draw(seed, batch, materials, i) for i in itertools.count(first))
    return itertools.islice(itertools.chain.from_iterable(lists), done, None)


def _draw(seed, batch, materials, i):
    """Return the i-th list of views, as they come from files: eight bits a value."""
    state = np.random.SeedSequence([seed, i]).generate_state(1, np.uint64)
    generator = torch.Generator(materials.color.device).manual_seed(int(state[0] >> 1))
    drawn = draw_views(generator, batch, materials)
    return [x._replace(images=(255 * x.images).round_().byte()) for x in drawn]


def _receive(seed, batch, device, first, n_workers):
    """Yield what workers draw, in order; a thread reads ahead."""
    context = torch.multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(n_workers)]
    for i, (_, end) in enumerate(pipes):
        arguments = (seed, batch, str(device), first + i, n_workers, end)
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
    while (arrays := waiting.get()) is not None:
        yield [_to_views(x, device) for x in arrays]
    raise RuntimeError("a process that draws views has ended, see its message above.")


def _work(seed, batch, device, first, step, end):
    """Draw every `step`-th list of views, and send them, until nobody reads."""
    torch.set_num_threads(1)
    materials = make_materials(torch.device(device))
    try:
        for i in itertools.count(first, step):
            drawn = _draw(seed, batch, materials, i)
            end.send([[x.cpu().numpy() for x in views] for views in drawn])
    except (BrokenPipeError, KeyboardInterrupt):
        pass


def _to_views(arrays, device):
    return Views(*(torch.from_numpy(x).to(device) for x in arrays))
