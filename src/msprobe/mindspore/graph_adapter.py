"""GraphAdapter: MindSpore's answers where cells are compiled, which it sees through taps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from mindspore import nn

from msprobe import kernels
from msprobe.adapter import Around, ModuleWatch, Region, Undo, Want
from msprobe.mindspore.adapter import MindSporeAdapter
from msprobe.mindspore.arrivals import Arrivals, Name, Values
from msprobe.mindspore.describe import TENSOR, copy_of, leaf_of
from msprobe.mindspore.tapping import Tapping
from msprobe.mindspore.taps import is_compiled
from msprobe.name import module_owner, outer
from msprobe.record import Leaf
from msprobe.store.tensor_file import TensorData


class GraphAdapter(MindSporeAdapter):
    """MindSpore, as far as recording compiled cells needs it.

    everywhere  all cells are compiled, as in a static graph; else those that mindspore.jit compiles are, and
                the cells inside them
    statistics  a tensor is described by its statistics; else by dtype and shape alone
    """

    def __init__(self, *, everywhere: bool, statistics: bool) -> None:
        super().__init__()
        self._everywhere = everywhere
        self._statistics = statistics
        self._arrivals = Arrivals()
        self._tapping = Tapping(self._arrivals)
        self.is_tensor = _is_values
        self.describe = self._describe
        self.sketch = self._sketch
        self.snapshot = _snapshot
        self.untracked = nullcontext  # we touch nothing but arrays
        self.begin_backward = self._arrivals.begin_backward
        self.on_backward = self._arrivals.on_backward
        self.on_gradient = self._arrivals.on_gradient
        self.parameters = self._arrivals.parameters
        self.settle = self._arrivals.settle
        self.forget = self._arrivals.forget
        self.remove_taps = self._tapping.remove

    def put_taps(self, model: Any) -> None:
        """Have the cells of a model compiled with taps from now on."""
        self._tapping.put(self._compiled(model))

    def _compiled(self, model: Any) -> Iterator[tuple[Name, nn.Cell]]:
        for index, root in self.models_of(model):
            compiled = {""} if self._everywhere or is_compiled(root) else set()
            owners: dict[str, tuple[str, ...]] = {}
            for path, cell in root.cells_and_names():
                above = outer(path)
                if path and (above in compiled or is_compiled(cell)):
                    owner = module_owner(path, type(cell).__name__, prefix=self.module_prefix, index=index)
                    around = owners.get(above, ())
                    compiled.add(path)
                    owners[path] = (owner, *around)
                    yield Name(owner, around), cell

    def differentiates(self) -> bool:
        return True  # a graph does not tell; if it has a backward, that will show

    def intercept(self, around: Around, region: Region) -> Undo:
        return lambda: None

    def watch(self, models: Any, watch: ModuleWatch) -> Undo:
        return self._arrivals.listen(watch)

    def memory_of(self, tensor: Any) -> Any:
        return None  # what a tap hands over is a copy: nothing says whose output it was

    def _describe(self, tensor: Values, want: Want) -> Leaf:
        if tensor.array is None:
            return Leaf(TENSOR, extra={"dtype": tensor.dtype})
        if not self._statistics:
            return Leaf(TENSOR, None, tensor.dtype, tensor.shape)
        return leaf_of(tensor.array, tensor.dtype, tensor.shape, want)

    def _sketch(self, tensor: Values) -> bytes | None:
        return kernels.sketch_of(tensor.array) if self._statistics and tensor.array is not None else None


def _is_values(value: Any) -> bool:
    return isinstance(value, Values)


def _snapshot(tensor: Values) -> TensorData | None:
    return None if tensor.array is None else copy_of(tensor.array)
