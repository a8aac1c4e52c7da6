"""The cases of overflow_check: nets in which one call overflows, and nets in which none does.

Each case is a step of the transformer or of the convolutional net. What overflows is a kernel below the
recorder, a call that was added behind one of the norms, or the data, a weight or the first gradient. What
must be named follows from the source: the calls that were added occur once in the nets, or are numbered in
forward order. `producer` is a call that overflows although all it was given is finite; `entered` is the first
call that was given a number that no recorded call made.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from truth import kernel_faults as k
from truth.cases import Run, Suite
from truth.judging import ACCUSED, ERROR, FIRST, LISTED, NONE, SOUND, WRONG, Outcome
from truth.nets import HEADS, LENGTH, NETS, WIDTH, Attention, FusedAttention, words
from truth.recordings import Recordings

FAULTS, SOUND_BENCH = "overflow_check, faults", "overflow_check, sound"
MODE = "tensor"
ALL = ("float32", "bfloat16", "float16")
RANGE_OF_FLOAT32 = ("float32", "bfloat16")
PRODUCER, ENTERED = "producer", "entered"
Behind = Callable[[Tensor], Tensor]


class Case(NamedTuple):
    """One net with what overflows in it; `call` is empty where nothing does."""

    net: str
    name: str
    dtypes: tuple[str, ...]
    call: str = ""  # the record that must be named
    verdict: str = PRODUCER
    fault: k.Fault | None = None  # a kernel below the recorder
    behind: Behind | None = None  # calls behind a norm in the middle of the net
    change: Callable[[Any], None] | None = None  # to the model before the step
    start: float = 1.0  # the gradient of the loss
    after: Callable[[Any], None] | None = None  # what is done with the model when it has gradients


# ---- kernels below the recorder ----


def infinite(y: Tensor) -> Tensor:
    """One element is infinite."""
    y.view(-1)[y.numel() // 3] = float("inf")
    return y


def minus_infinite(y: Tensor) -> Tensor:
    """One element is -inf, as in a mask."""
    y.view(-1)[y.numel() // 3] = float("-inf")
    return y


def not_a_number(y: Tensor) -> Tensor:
    """One element is NaN."""
    y.view(-1)[y.numel() // 2] = float("nan")
    return y


def row_not_a_number(y: Tensor) -> Tensor:
    """The last row is NaN, as memory that was never written may be."""
    y.select(0, y.shape[0] - 1).fill_(float("nan"))
    return y


# ---- calls that overflow ----


def exponential(x: Tensor) -> Tensor:
    """e to the power of more than the logarithm of the largest number."""
    return torch.exp(x.abs() + (12.0 if x.dtype == torch.float16 else 90.0))


def divided_by_zero(x: Tensor) -> Tensor:
    return torch.div(x, torch.zeros_like(x))


def logarithm_of_zero(x: Tensor) -> Tensor:
    return torch.log(F.relu(-x.abs()))


def root_of_negative(x: Tensor) -> Tensor:
    return x + torch.rsqrt(x)


def power(x: Tensor) -> Tensor:
    return torch.pow(x.abs() + 10, 60)


def product_scaled_late(x: Tensor) -> Tensor:
    """Products of numbers of 2^8 are divided by 2^16 only when they were added up."""
    flat = x.flatten(1) * 256
    return x + (torch.mm(flat, flat.t()) / 65536).mean()


def summed(x: Tensor) -> Tensor:
    """The sum of many numbers of a hundred is beyond float16."""
    return x / torch.sum(x.abs() * 100)


def squared(x: Tensor) -> Tensor:
    """The mean square of numbers of a thousand, as a norm in float16 computes it without a cast."""
    large = x * 1000
    return large / torch.square(large).mean().sqrt()


def cast_down(x: Tensor) -> Tensor:
    """Numbers of 1e6 do not fit into float16."""
    return (x * 1e6).half().to(x.dtype) / 1e6


def masked_as_a_whole(x: Tensor) -> Tensor:
    """A softmax over a row in which everything is masked."""
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[0, 0] = True
    return x * F.softmax(x.masked_fill(mask, float("-inf")), -1)


def root_of_zero(x: Tensor) -> Tensor:
    """Finite, but its gradient is not."""
    return x + torch.sqrt(F.relu(-x.abs()))


def norm_of_zero(x: Tensor) -> Tensor:
    """A square root of a sum of squares by hand: the gradient at zero is 0 * inf."""
    still = x * 0
    return x + torch.sqrt((still * still).sum(-1, keepdim=True))


def infinity_in_place(x: Tensor) -> Tensor:
    """A call that works in place overflows."""
    y = x.abs() + 1
    return x / y.mul_(torch.finfo(x.dtype).max / 1000).mul_(1e4)


# ---- data, weights and gradients ----


def weight_of(path: str, value: float) -> Callable[[Any], None]:
    """One number of a parameter is not finite."""

    def change(model: Any) -> None:
        with torch.no_grad():
            model.get_parameter(path).view(-1)[7] = value

    return change


def word_not_a_number(model: Any) -> None:
    """The embedding of one word, which is in the data, is NaN."""
    with torch.no_grad():
        model.words.weight[words(31)[0, 0]] = float("nan")


def pictures_with(value: float) -> Callable[[Any], None]:
    """One pixel of the pictures is not finite; they are made before the recording begins."""

    def change(model: Any) -> None:
        random = torch.Generator().manual_seed(33)
        pictures = torch.randn(6, 3, 16, 16, generator=random).to(model.head.weight.dtype)
        pictures.view(-1)[100] = value
        labels = torch.randint(0, 10, (6,), generator=random)
        model.loss = lambda: F.cross_entropy(model(pictures).float(), labels)

    return change


# ---- sound ----


class MaskedAttention(Attention):
    """Attention with a mask of another kind."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, key, v = self.query_key_value(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        smallest = torch.finfo(x.dtype).min
        added = torch.zeros(length, length, dtype=x.dtype).masked_fill(
            future, smallest if self.mask == "finfo.min" else float("-inf")
        )
        if self.mask == "fused":
            y = F.scaled_dot_product_attention(q, key, v, attn_mask=added)
        else:
            scores = torch.matmul(q, key.transpose(-2, -1)) / (WIDTH // HEADS) ** 0.5
            if self.mask == "filled in place":
                scores = scores.clone()
                scores[..., future] = float("-inf")
            elif self.mask == "where":
                scores = torch.where(future, torch.tensor(float("-inf"), dtype=x.dtype), scores)
            elif self.mask == "finfo.min filled":
                scores = scores.masked_fill(future, smallest)
            elif self.mask == "triu":
                scores = scores + torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)
            else:
                scores = scores + added
            y = torch.matmul(torch.softmax(scores, -1), v)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


MASKS = ("added", "finfo.min", "finfo.min filled", "filled in place", "where", "triu", "fused")


def masked_by(mask: str) -> Callable[[Any], None]:
    """Let the first block mask in another way."""

    def change(model: Any) -> None:
        other = MaskedAttention(mask).to(model.head.weight.dtype)
        other.load_state_dict(model.blocks[0].attention.state_dict())
        model.blocks[0].attention = other

    return change


def mask_from_outside(model: Any) -> None:
    """A mask of -inf that was made before the recording begins."""
    length = LENGTH
    mask = torch.full((length, length), float("-inf"), dtype=model.head.weight.dtype).triu(1)
    attention = model.blocks[1].attention
    assert isinstance(attention, FusedAttention)
    attention.forward = partial(_attend, attention, mask)


def _attend(attention: Attention, mask: Tensor, x: Tensor) -> Tensor:
    batch, length, _ = x.shape
    q, key, v = attention.query_key_value(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    scores = torch.matmul(q, key.transpose(-2, -1)) / (WIDTH // HEADS) ** 0.5 + mask
    y = torch.matmul(torch.softmax(scores, -1), v)
    return attention.out(y.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


def large_and_back(x: Tensor) -> Tensor:
    """Numbers of 1e30 (float16: 1e4) are finite."""
    size = 1e4 if x.dtype == torch.float16 else 1e30
    return x * size / size


def largest_of_masked(x: Tensor) -> Tensor:
    """The largest and the smallest of some numbers: the others are filled with -inf and inf."""
    chosen = torch.arange(x.shape[-1]) % 3 == 0
    largest = x.masked_fill(chosen, float("-inf")).amax(-1, keepdim=True)
    smallest = x.masked_fill(chosen, float("inf")).amin(-1, keepdim=True)
    return x + 0.01 * (largest - smallest)


def log_sum_of_masked(x: Tensor) -> Tensor:
    chosen = torch.arange(x.shape[-1]) % 3 == 0
    return x + 0.01 * torch.logsumexp(x.masked_fill(chosen, float("-inf")), -1, keepdim=True)


def unbounded_clamp(x: Tensor) -> Tensor:
    """A bound may be infinite."""
    return x.clamp(min=-10.0, max=float("inf"))


def largest_norm(x: Tensor) -> Tensor:
    """The largest absolute value is the norm of order infinity."""
    return x / torch.linalg.vector_norm(x, float("inf"), -1, keepdim=True)


def running_largest(x: Tensor) -> Tensor:
    """A running maximum begins with -inf, as in attention over blocks of keys."""
    largest = torch.full(x.shape[:-1], float("-inf"), dtype=x.dtype)
    total = torch.zeros_like(largest)
    for part in x.chunk(2, -1):
        newer = torch.maximum(largest, part.amax(-1))
        total = total * torch.exp(largest - newer) + torch.exp(part - newer[..., None]).sum(-1)
        largest = newer
    return x + 0.01 * (largest + torch.log(total))[..., None]


def norm_measured(model: Any) -> None:
    """Gradients are measured and not clipped."""
    nn.utils.clip_grad_norm_(model.parameters(), float("inf"))


CASES = (
    # Kernels below the recorder, forward and backward.
    Case("transformer", "gelu_inf", ALL, "Functional.gelu.1.forward", fault=k.Fault("gelu", 1, infinite)),
    Case(
        "transformer",
        "linear_nan",
        ALL,
        "Functional.linear.6.forward",
        fault=k.Fault("addmm", 6, not_a_number),
    ),
    Case(
        "transformer",
        "norm_row_nan",
        ("bfloat16",),
        "Functional.layer_norm.3.forward",
        fault=k.Fault("native_layer_norm", 3, row_not_a_number),
    ),
    Case(
        "transformer",
        "matmul_minus_inf",
        ("float32", "float16"),
        "Torch.matmul.0.forward",
        fault=k.Fault("bmm", 0, minus_infinite),
    ),
    Case(
        "transformer",
        "softmax_nan",
        ("float32",),
        "Torch.softmax.1.forward",
        fault=k.Fault("_softmax", 1, not_a_number),
    ),
    Case(
        "transformer",
        "gelu_back_inf",
        ALL,
        "Functional.gelu.1.backward",
        fault=k.Fault("gelu_backward", 1, infinite),
    ),
    Case(
        "transformer",
        "norm_back_nan",
        ALL,
        "Functional.layer_norm.4.backward",
        fault=k.Fault("native_layer_norm_backward", 2, not_a_number),
    ),
    Case(
        "transformer",
        "softmax_back_nan",
        ("bfloat16",),
        "Torch.softmax.1.backward",
        fault=k.Fault("_softmax_backward_data", 0, row_not_a_number),
    ),
    Case("conv", "conv_inf", ALL, "Functional.conv2d.1.forward", fault=k.Fault("convolution", 1, infinite)),
    Case("conv", "silu_nan", ALL, "Functional.silu.0.forward", fault=k.Fault("silu", 0, not_a_number)),
    Case(
        "conv",
        "pool_minus_inf",
        ("float32",),
        "Functional.avg_pool2d.0.forward",
        fault=k.Fault("avg_pool2d", 0, minus_infinite),
    ),
    Case(
        "conv",
        "conv_back_inf",
        ALL,
        "Functional.conv2d.2.backward",
        fault=k.Fault("convolution_backward", 1, infinite),
    ),
    Case(
        "conv",
        "silu_back_nan",
        ALL,
        "Functional.silu.0.backward",
        fault=k.Fault("silu_backward", 0, not_a_number),
    ),
    # Calls that overflow by themselves.
    *(
        Case(net, name, dtypes, call, behind=behind)
        for net in ("transformer", "conv")
        for name, dtypes, call, behind in (
            ("exp", ALL, "Torch.exp.0.forward", exponential),
            ("div_zero", ALL, "Torch.div.0.forward", divided_by_zero),
            ("log_zero", ALL, "Torch.log.0.forward", logarithm_of_zero),
            ("rsqrt_negative", ALL, "Torch.rsqrt.0.forward", root_of_negative),
            ("pow", ALL, "Torch.pow.0.forward", power),
            ("mm_late", ("float16",), "Torch.mm.0.forward", product_scaled_late),
            ("sum", ("float16",), "Torch.sum.0.forward", summed),
            ("square", ("float16",), "Torch.square.0.forward", squared),
            ("half", RANGE_OF_FLOAT32, "Tensor.half.0.forward", cast_down),
            ("softmax_masked_row", ALL, "Functional.softmax.0.forward", masked_as_a_whole),
            ("sqrt_zero_back", ALL, "Torch.sqrt.0.backward", root_of_zero),
            ("norm_zero_back", ALL, "Torch.sqrt.0.backward", norm_of_zero),
            ("in_place", ALL, "Tensor.mul_.1.forward", infinity_in_place),
        )
    ),
    Case("transformer", "loss_scale", ("float16",), "Tensor.float.0.backward", start=2.0**24),
    Case("conv", "loss_scale", ("float16",), "Tensor.float.0.backward", start=2.0**24),
    # What came from outside.
    Case(
        "transformer",
        "weight_nan",
        ALL,
        "Functional.linear.6.forward",
        ENTERED,
        change=weight_of("blocks.1.up.weight", float("nan")),
    ),
    Case(
        "transformer",
        "weight_inf",
        ALL,
        "Functional.layer_norm.4.forward",
        ENTERED,
        change=weight_of("blocks.2.norm1.weight", float("inf")),
    ),
    Case("transformer", "word_nan", ALL, "Functional.embedding.0.forward", ENTERED, change=word_not_a_number),
    Case(
        "transformer", "gradient_inf", ALL, "Functional.cross_entropy.0.backward", ENTERED, start=float("inf")
    ),
    Case(
        "conv", "picture_inf", ALL, "Functional.conv2d.0.forward", ENTERED, change=pictures_with(float("inf"))
    ),
    Case(
        "conv", "picture_nan", ALL, "Functional.conv2d.0.forward", ENTERED, change=pictures_with(float("nan"))
    ),
    Case("conv", "gradient_nan", ALL, "Functional.cross_entropy.0.backward", ENTERED, start=float("nan")),
    # Nothing overflows.
    Case("transformer", "sound", ALL),
    Case("conv", "sound", ALL),
    Case("transformer", "norm_measured", ALL, after=norm_measured),
    Case("conv", "norm_measured", ALL, after=norm_measured),
    *(Case("transformer", f"mask_{mask.replace(' ', '_')}", ALL, change=masked_by(mask)) for mask in MASKS),
    Case("transformer", "mask_from_outside", ALL, change=mask_from_outside),
    *(
        Case(net, name, ALL, behind=behind)
        for net in ("transformer", "conv")
        for name, behind in (
            ("large", large_and_back),
            ("largest_of_masked", largest_of_masked),
            ("log_sum_of_masked", log_sum_of_masked),
            ("unbounded_clamp", unbounded_clamp),
            ("largest_norm", largest_norm),
            ("running_largest", running_largest),
        )
    ),
)


class Followed(nn.Module):
    """A module, and calls behind it."""

    def __init__(self, module: nn.Module, behind: Behind) -> None:
        super().__init__()
        self.module, self.behind = module, behind

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.module(x))


def _follow(model: Any, behind: Behind) -> None:
    holder = model.blocks[1] if hasattr(model, "blocks") else model
    holder.norm2 = Followed(holder.norm2, behind)


def record(case: Case, dtype: str, config: str) -> None:
    """Train one step of a case with overflow_check, which leaves a table if something overflows."""
    from msprobe.pytorch import PrecisionDebugger

    keys = json.loads(Path(config).read_text(encoding="utf-8"))
    keys = {
        "task": "overflow_check",
        "level": "L1",
        "dump_path": keys["dump_path"],
        "overflow_check": {"overflow_nums": -1},
    }
    Path(config).write_text(json.dumps(keys), encoding="utf-8")
    torch.manual_seed(7)
    model = NETS[case.net]().to(getattr(torch, dtype))
    if case.behind is not None:
        _follow(model, case.behind)
    if case.change is not None:
        case.change(model)
    start = torch.tensor(case.start)
    debugger = PrecisionDebugger(config)
    debugger.start(model)
    with k.kernels(k.EXACT, case.fault):
        model.loss().backward(start)
    if case.after is not None:
        case.after(model)
    debugger.stop()
    debugger.step()


def add(made: Suite) -> None:
    """Add a run for each case and dtype."""
    for name, (case, dtype) in _runs().items():
        made.add(Run(name, _unused, record=partial(record, case, dtype)))


def _unused() -> Any:
    raise AssertionError("this run is recorded in its own way")


def _runs() -> dict[str, tuple[Case, str]]:
    return {
        f"{case.net}.{dtype}.overflow.{case.name}": (case, dtype) for case in CASES for dtype in case.dtypes
    }


# ---- what it answers ----


def outcomes(recordings: Recordings) -> Iterator[Outcome]:
    """Judge what overflow_check names: producers and what entered, in the order in which they came."""
    for run, (case, dtype) in _runs().items():
        found = _named(recordings.folder(run, MODE))
        bench = FAULTS if case.call else SOUND_BENCH
        expected = f"{case.verdict}: {case.call}" if case.call else ""
        words = "not recorded" if found is None else f"names {'; '.join(found) or 'nothing'}"
        outcome = _outcome(case, found)
        yield Outcome("checks", bench, run, dtype, outcome, bool(found), 0, "", words, expected, 0.0, 0.0)


def _outcome(case: Case, found: list[str] | None) -> str:
    if found is None:
        return ERROR
    if not case.call:
        return ACCUSED if found else SOUND
    right = [each == f"{case.verdict}: {case.call}" for each in found]
    if right[:1] == [True]:
        return FIRST if len(found) == 1 else LISTED
    return LISTED if any(right) else WRONG if found else NONE


def _named(folder: Path) -> list[str] | None:
    """The verdict and name of each record that overflow_check counts; None if there is no recording."""
    ranks = list(folder.glob("step0/rank*"))
    if not ranks:
        return None
    table = ranks[0] / "overflow.csv"
    if not table.exists():
        return []
    with table.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [f"{row['verdict']}: {row['name']}" for row in rows if row["verdict"] in (PRODUCER, ENTERED)]
