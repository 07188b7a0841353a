"""Convolution, bias and activation in Triton.

Letters in capitals are known when a kernel is compiled.
"""

import triton
import triton.language as tl

# What half precision can hold, about.
_LARGEST = tl.constexpr(60000.0)


@triton.jit(do_not_specialize=["n"])
def convolve(
    images, weight, rest, bias, out, n, height, width, out_height, out_width,
    scale, slope, STRIDE: tl.constexpr, DILATION: tl.constexpr, SIZE: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, PIXELS: tl.constexpr, AT_A_TIME: tl.constexpr,
):  # fmt: skip
    """Convolve images, channels last, from C to D channels, and apply a leaky ReLU.

    Numbers are multiplied as sums of two of half precision, which the GPU's matrix
    units take; what is left out is the product of both rests. `weight` and `rest` are
    such a sum, divided by `scale`.
    """
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    is_pixel = pixel < n
    image = pixel // (out_height * out_width)
    row = pixel // out_width % out_height
    start = (image * height + row * STRIDE) * width + pixel % out_width * STRIDE
    channel, to = tl.arange(0, AT_A_TIME), tl.arange(0, D)
    total = tl.zeros((PIXELS, D), dtype=tl.float32)
    for i in range(SIZE * SIZE * (C // AT_A_TIME)):
        cell = i // (C // AT_A_TIME)
        first = i % (C // AT_A_TIME) * AT_A_TIME
        move = (cell // SIZE * width + cell % SIZE) * DILATION
        place = (start + move)[:, None] * C + first + channel[None, :]
        x = tl.load(images + place, mask=is_pixel[:, None], other=0.0)
        x = tl.minimum(tl.maximum(x, -_LARGEST), _LARGEST)
        kept = x.to(tl.float16)
        x_rest = (x - kept.to(tl.float32)).to(tl.float16)
        place = (cell * C + first + channel)[:, None] * D + to[None, :]
        w, w_rest = tl.load(weight + place), tl.load(rest + place)
        # Not into the total: matrix units cut sums off instead of rounding them.
        part = tl.dot(x_rest, w)
        part = tl.dot(kept, w_rest, part)
        total += tl.dot(kept, w, part)
    total = total * scale + tl.load(bias + to)[None, :]
    total = tl.where(total > 0, total, total * slope)
    tl.store(out + pixel[:, None] * D + to[None, :], total, mask=is_pixel[:, None])


@triton.jit(do_not_specialize=["n"])
def activate(x, bias, n, slope, C: tl.constexpr, PIXELS: tl.constexpr):
    """Add a bias to pixels, channels last, and apply a leaky ReLU, in place."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.arange(0, C)
    place = pixel[:, None] * C + channel[None, :]
    is_pixel = (pixel < n)[:, None]
    y = tl.load(x + place, mask=is_pixel, other=0.0).to(tl.float32)
    y += tl.load(bias + channel)[None, :]
    tl.store(x + place, tl.where(y > 0, y, y * slope), mask=is_pixel)


@triton.jit(do_not_specialize=["n"])
def activate_backward(
    grad, activated, before, sums, n, slope, C: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """Find the gradient of `activate`'s input, and a program's sum of the bias's."""
    channel = tl.arange(0, C)
    total = tl.zeros((PIXELS, C), dtype=tl.float32)
    step = tl.num_programs(0) * PIXELS
    for start in range(tl.program_id(0) * PIXELS, n, step):
        pixel = start + tl.arange(0, PIXELS)
        place = pixel[:, None] * C + channel[None, :]
        is_pixel = (pixel < n)[:, None]
        y = tl.load(activated + place, mask=is_pixel, other=0.0).to(tl.float32)
        x = tl.load(grad + place, mask=is_pixel, other=0.0).to(tl.float32)
        x = tl.where(y > 0, x, x * slope)
        tl.store(before + place, x, mask=is_pixel)
        total += x
    tl.store(sums + tl.program_id(0) * C + channel, tl.sum(total, axis=0))
