"""Faulty kernels: a dispatch mode below the recorder changes what one operator computes, on the n-th call.

The recorder sees the arguments that the network gave and the result that the kernel returned, as on a device
whose kernel is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Kernel = Callable[..., Any]
Change = Callable[[Kernel, tuple[Any, ...], dict[str, Any], list[Any]], Any]


class Fault(NamedTuple):
    """Which call of which operator goes wrong, and how."""

    operator: str  # "aten.native_layer_norm"
    number: int  # counted from 0, in one step
    change: Change


class Faulty(TorchDispatchMode):
    """Computes as torch does, but for one call in each step; `step()` begins the next."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault
        self._calls: Counter[str] = Counter()
        self._results: list[Any] = []
        self.hits = 0

    def step(self) -> None:
        self._calls.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = f"aten.{func.overloadpacket.__name__}"
        if name != self._fault.operator:
            return func(*args, **kwargs)
        number = self._calls[name]
        self._calls[name] += 1
        if number == self._fault.number:
            self.hits += 1
            return self._fault.change(func, args, kwargs, self._results)
        result = func(*args, **kwargs)
        self._results.append(result)
        return result


class OtherDevice(TorchDispatchMode):
    """Every floating-point result is off by about one rounding, as another device's would be."""

    SUMMING = frozenset(
        {"mm", "addmm", "bmm", "baddbmm", "convolution", "native_layer_norm", "_softmax", "sum", "mean",
         "native_batch_norm", "convolution_backward", "native_layer_norm_backward", "_softmax_backward_data",
         "gelu", "tanh", "sigmoid", "_log_softmax", "exp", "gelu_backward", "native_batch_norm_backward",
         "div", "rsqrt"}
    )  # fmt: skip

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = torch.Generator().manual_seed(seed)

    def step(self) -> None:
        """Nothing begins anew."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in self.SUMMING:
            return result
        if isinstance(result, Tensor):
            return self._rounded(result)
        return type(result)(self._rounded(item) if isinstance(item, Tensor) else item for item in result)

    def _rounded(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        unit = torch.finfo(tensor.dtype).eps
        noise = torch.randn(tensor.shape, generator=self._random, dtype=torch.float32)
        return tensor * (1 + unit * noise).to(tensor.dtype)


class OtherOrder(TorchDispatchMode):
    """Matrix products are added up in two halves, sums from the other end."""

    def step(self) -> None:
        """Nothing begins anew."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm") and args[0].shape[-1] > 1:
            a, b = args
            middle = a.shape[-1] // 2
            return func(a[..., :middle], b[..., :middle, :]) + func(a[..., middle:], b[..., middle:, :])
        if name == "addmm" and not kwargs and args[1].shape[-1] > 1:
            bias, a, b = args
            middle = a.shape[-1] // 2
            return (a[:, middle:] @ b[middle:] + a[:, :middle] @ b[:middle]) + bias
        if name in ("sum", "mean") and isinstance(args[0], Tensor) and args[0].is_floating_point():
            return func(args[0].flip(tuple(range(args[0].dim()))), *args[1:], **kwargs).flip(
                tuple(range(func(*args, **kwargs).dim()))
            )
        return func(*args, **kwargs)


# ---- ways to be wrong ----


def _on_first(result: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The change, of the only or the first tensor of a result."""
    if isinstance(result, Tensor):
        return change(result)
    return (change(result[0]), *result[1:])


def scaled(by: float) -> Change:
    return lambda kernel, args, kwargs, _: _on_first(kernel(*args, **kwargs), lambda y: y * by)


def dropped_rows(kernel: Kernel, args: Any, kwargs: Any, _: Any) -> Any:
    """The last tenth of the rows, one at least, is zero."""

    def drop(y: Tensor) -> Tensor:
        rows = y.reshape(-1, y.shape[-1]).clone()
        rows[-max(1, len(rows) // 10) :] = 0
        return rows.reshape(y.shape)

    return _on_first(kernel(*args, **kwargs), drop)


def permuted_rows(kernel: Kernel, args: Any, kwargs: Any, _: Any) -> Any:
    return _on_first(
        kernel(*args, **kwargs), lambda y: y.reshape(-1, y.shape[-1]).roll(1, 0).reshape(y.shape)
    )


def in_bfloat16(kernel: Kernel, args: Any, kwargs: Any, _: Any) -> Any:
    """Computed from bfloat16, returned as float32."""
    halved = [a.bfloat16() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    return _on_first(kernel(*halved, **kwargs), lambda y: y.float())


def negated(kernel: Kernel, args: Any, kwargs: Any, _: Any) -> Any:
    return _on_first(kernel(*args, **kwargs), torch.neg)


def stale(kernel: Kernel, args: Any, kwargs: Any, results: list[Any]) -> Any:
    """What the buffer held since an earlier call with a result of this shape; zeros if there was none."""
    result = kernel(*args, **kwargs)
    first = result if isinstance(result, Tensor) else result[0]
    earlier = [r if isinstance(r, Tensor) else r[0] for r in results]
    fitting = [r for r in earlier if r.shape == first.shape]
    return _on_first(result, lambda y: fitting[-1].clone() if fitting else torch.zeros_like(y))


def not_a_number(kernel: Kernel, args: Any, kwargs: Any, _: Any) -> Any:
    def spoil(y: Tensor) -> Tensor:
        y = y.clone()
        y.view(-1)[y.numel() // 2] = float("nan")
        return y

    return _on_first(kernel(*args, **kwargs), spoil)


def argument(position: int, change: Callable[[Any], Any]) -> Change:
    """One argument is another than the one given."""

    def wrong(kernel: Kernel, args: Any, kwargs: Any, _: Any) -> Any:
        changed = [*args]
        changed[position] = change(changed[position])
        return kernel(*changed, **kwargs)

    return wrong


def wrong_eps(position: int) -> Change:
    return argument(position, lambda eps: eps * 100)


def wrong_mask(position: int) -> Change:
    return argument(position, lambda mask: mask.roll(1, -1))
