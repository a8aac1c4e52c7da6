"""support_wrap_ops.yaml: what it lists is intercepted, under its name and once; what it does not is not."""

from __future__ import annotations

import contextlib
import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from msprobe.adapter import Api, OptimizerState
from msprobe.errors import ConfigError
from msprobe.pytorch import apis
from msprobe.pytorch.adapter import TorchAdapter
from torch_fixtures import Probe, probe

__all__ = ["probe"]

HOLDERS = {"functional": F, "tensor": torch.Tensor, "_VF": torch._VF, "torch": torch}
LISTED = apis.read_list(apis.SUPPORT_LIST)


def function_of(section: str, name: str) -> Any:
    holder, attribute = apis._resolve(HOLDERS[section], name)
    return getattr(holder, attribute, None)


NAMES = [
    (section, name)
    for section in HOLDERS
    for name in LISTED.get(section, ())
    if callable(function_of(section, name))
]


SECOND_NAMES = ("dsmm", "hsmm", "saddmm", "spmm")  # of mm, hspmm and sspaddmm; torch documents none of them


def expected_names() -> dict[tuple[str, str], str]:
    """The name each listed function is recorded by; one that two sections list is named by the first.

    torch.mm is torch.dsmm to everybody who compares them: such functions have the name that is common.
    """
    first: dict[Any, str] = {}
    wanted = {}
    for section, name in sorted(NAMES, key=lambda each: each[1] in SECOND_NAMES):
        own = f"{apis._SECTIONS[section][1]}.{name}"
        wanted[section, name] = (
            own if name.startswith("__") else first.setdefault(function_of(section, name), own)
        )
    return wanted


class Seen:
    """Which listed functions are called, the outermost only."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._inside = False

    def __call__(self, api: Api, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._inside:
            return function(*args, **kwargs)
        self.names.append(f"{api.prefix}.{api.name}")
        self._inside = True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside = False

    def mark(self) -> None:
        return None

    def again(self, mark: Any) -> Any:
        raise AssertionError("nothing is checkpointed here")

    def copied(self, source: Any, copy: Any, *, is_whole: bool) -> None:
        """Copies are no calls."""

    def optimizes(self, states: Iterable[OptimizerState]) -> None:
        return


def op_samples() -> dict[str, list[tuple[list[Any], dict[str, Any]]]]:
    """Sample arguments from torch's own table of operators, by every name an operator has."""
    stand_in = types.ModuleType("expecttest")  # the table needs it for classes of tests that we do not use
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        if "expecttest" not in sys.modules:
            patch.setitem(sys.modules, "expecttest", stand_in)
        # Importing it forbids the whole process to set torch.backends.cudnn.deterministic and the like.
        patch.setattr(torch.backends, "disable_global_flags", lambda: None)
        from torch.testing._internal.common_methods_invocations import op_db
    known: dict[str, list[tuple[list[Any], dict[str, Any]]]] = {}
    for op in op_db:
        names = {op.name, op.name.removeprefix("nn.functional."), *(alias.name for alias in op.aliases)}
        for name in names & WANTED:
            known.setdefault(name, []).extend(_samples(op))
    return known


def _samples(op: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    dtype = next((kind for kind in (torch.float32, torch.int64, *op.dtypes) if kind in op.dtypes), None)
    with contextlib.suppress(Exception):  # a sample may need what this machine lacks
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 3):
            yield [sample.input, *sample.args], dict(sample.kwargs)


def copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return type(value)(map(copied, value)) if type(value) in (list, tuple) else value


def other_names(name: str) -> tuple[str, ...]:
    """How the table may call an operator: in place or not, inside a module or not."""
    return tuple(dict.fromkeys((name, name.rstrip("_"), name.strip("_"), name.rpartition(".")[2])))


WANTED = {other for _, name in NAMES for other in other_names(name)}
X = torch.rand(4, 4) + 0.5
IMAGE, VOLUME, SERIES = torch.rand(1, 2, 6, 6), torch.rand(1, 2, 6, 6, 6), torch.rand(1, 2, 6)
S = torch.eye(4).to_sparse()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    Q = torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)
GATES = [torch.rand(12, 4), torch.rand(12, 4), torch.rand(12), torch.rand(12)]
LSTM = [torch.rand(16, 4), torch.rand(16, 4), torch.rand(16), torch.rand(16)]
HIDDEN = (torch.zeros(1, 4, 4), torch.zeros(1, 4, 4))
THETA = torch.rand(1, 2, 3)
SAMPLES: dict[str, tuple[Any, ...]] = {
    "functional.adaptive_max_pool2d_with_indices": (IMAGE, 3),
    "functional.adaptive_max_pool3d_with_indices": (VOLUME, 3),
    "functional.affine_grid": (THETA, [1, 2, 4, 4], False),
    "functional.conv_tbc": (torch.rand(5, 2, 3), torch.rand(3, 3, 4), torch.rand(4)),
    "functional.fold": (torch.rand(1, 12, 9), (4, 4), (2, 2)),
    "functional.fractional_max_pool2d_with_indices": (IMAGE, 2, 3),
    "functional.fractional_max_pool3d_with_indices": (VOLUME, 2, 3),
    "functional.lp_pool1d": (SERIES, 2.0, 2),
    "functional.lp_pool2d": (IMAGE, 2.0, 2),
    "functional.lp_pool3d": (VOLUME, 2.0, 2),
    "functional.max_pool2d_with_indices": (IMAGE, 2),
    "functional.max_pool3d_with_indices": (VOLUME, 2),
    "functional.upsample": (IMAGE, 12),
    "tensor.__setitem__": (X, 0, 1.0),
    "tensor.float_power_": (X.double(), 2),
    "tensor.map_": (X, X, lambda a, b: a),
    "tensor.map2_": (X, X, X, lambda a, b, c: a),
    "tensor.q_zero_point": (Q,),
    "tensor.smm": (S, X),
    "tensor.sspaddmm": (S, S, X),
    "tensor.unsafe_split_with_sizes": (X, [1, 3]),
    "_VF.lstm": (X[None], HIDDEN, LSTM, True, 1, 0.0, False, False, True),
    "torch._batch_norm_impl_index": (X, None, None, None, None, True, 0.1, 1e-5, False),
    "torch._convolution": (IMAGE, torch.rand(3, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
                           False, False, False, False),
    "torch._foreach_norm": ([X, X],),
    "torch._fused_adamw_": ([X], [X], [X], [X], [], [torch.tensor(1.0)]),
    "torch.affine_grid_generator": (THETA, [1, 2, 4, 4], False),
    "torch.alpha_dropout": (X, 0.5, True),
    "torch.alpha_dropout_": (X, 0.5, True),
    "torch.bartlett_window": (4,),
    "torch.batch_norm_update_stats": (X, None, None, 0.1),
    "torch.blackman_window": (4,),
    "torch.choose_qparams_optimized": (X.view(-1), 16, 10, 0.16, 8),
    "torch.conv_tbc": (torch.rand(5, 2, 3), torch.rand(3, 3, 4), torch.rand(4)),
    "torch.convolution": (IMAGE, torch.rand(3, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "torch.cosine_embedding_loss": (X, X, torch.ones(4)),
    "torch.ctc_loss": (X[:, None].log_softmax(-1), torch.tensor([[1]]), torch.tensor([4]), torch.tensor([1])),
    "torch.dropout": (X, 0.5, True),
    "torch.dropout_": (X, 0.5, True),
    "torch.einsum": ("ij,jk->ik", X, X),
    "torch.embedding_bag": (X, torch.tensor([0, 1]), torch.tensor([0, 1])),
    "torch.embedding_renorm_": (X, torch.tensor([0, 1]), 1.0, 2.0),
    "torch.feature_alpha_dropout": (IMAGE, 0.5, True),
    "torch.feature_alpha_dropout_": (IMAGE, 0.5, True),
    "torch.feature_dropout": (IMAGE, 0.5, True),
    "torch.feature_dropout_": (IMAGE, 0.5, True),
    "torch.frobenius_norm": (X, [0, 1]),
    "torch.grid_sampler": (IMAGE, torch.rand(1, 3, 3, 2), 0, 0, False),
    "torch.gru": (X[None], HIDDEN[0], GATES, True, 1, 0.0, False, False, True),
    "torch.gru_cell": (X, X, *GATES),
    "torch.hamming_window": (4,),
    "torch.hann_window": (4,),
    "torch.hsmm": (S, X),
    "torch.hspmm": (S, X),
    "torch.instance_norm": (IMAGE, None, None, None, None, True, 0.1, 1e-5, False),
    "torch.kaiser_window": (4,),
    "torch.lstm": (X[None], HIDDEN, LSTM, True, 1, 0.0, False, False, True),
    "torch.lstm_cell": (X, (X, X), *LSTM),
    "torch.max_pool2d": (IMAGE, 2),
    "torch.max_pool3d": (VOLUME, 2),
    "torch.native_norm": (S,),
    "torch.poisson_nll_loss": (X, X, True, False, 1e-8, 1),
    "torch.polygamma": (1, X),
    "torch.range": (0, 3),
    "torch.saddmm": (S, S, X),
    "torch.smm": (S, X),
    "torch.sspaddmm": (S, S, X),
    "torch.unsafe_split_with_sizes": (X, [1, 3]),
    "torch.vander": (X[0],),
}  # fmt: skip
KEYWORDS = {
    "torch._fused_adamw_": {
        "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8,
        "amsgrad": False, "maximize": False,
    }
}  # fmt: skip
PLAIN = [(X,), (X, X), (X, 2), (X.long(), X.long()), (X > 1, X > 1), (X[0, 0] > 0,), (X, X, X), (X, 0, X)]
# torch has only an error left of the first; the others run on a GPU, or are no functions of their own.
UNTRIED = {
    *((section, name) for section in ("tensor", "torch") for name in ("eig", "lstsq", "solve", "symeig")),
    ("torch", "matrix_rank"),
    *(
        ("torch", f"batch_norm_{name}")
        for name in ("backward_elemt", "backward_reduce", "elemt", "gather_stats")
    ),
    *(("torch", f"batch_norm_{name}") for name in ("gather_stats_with_counts", "stats")),
}


def tries(section: str, name: str, known: dict[str, Any]) -> Iterator[tuple[Sequence[Any], dict[str, Any]]]:
    own = SAMPLES.get(f"{section}.{name}")
    if own is not None:
        yield own, KEYWORDS.get(f"{section}.{name}", {})
    for other in other_names(name):
        yield from known.get(other, [])
    for plain in PLAIN:
        yield plain, {}


@pytest.mark.parametrize("name", ["mm", "sspaddmm", "hspmm"])
def test_a_function_with_several_names_has_its_common_one(name: str) -> None:
    assert apis.load().overridable[getattr(torch, name)].name == name


@pytest.mark.spec("R17", "PT")
def test_every_listed_function_is_seen_once_under_its_name() -> None:
    wanted, known = expected_names(), op_samples()
    seen = Seen()
    undo = TorchAdapter().intercept(seen, seen)
    untried, wrong = set(), {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for section, name in NAMES:
                found = _called(seen, function_of(section, name), tries(section, name, known))
                if found is None:
                    untried.add((section, name))
                elif found != [wanted[section, name]]:
                    wrong[section, name] = found
    finally:
        undo()
    assert wrong == {}
    assert untried == UNTRIED


def _called(
    seen: Seen, function: Any, samples: Iterator[tuple[Sequence[Any], dict[str, Any]]]
) -> list[str] | None:
    """The records of the first sample that the function takes."""
    for args, kwargs in samples:
        mine = [copied(value) for value in args]
        seen.names.clear()
        try:
            function(*mine, **kwargs)
        except Exception:
            continue
        return list(seen.names)
    return None


# --- the list may be edited ---


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[str]]], None]:
    """Puts another list in the place of ours."""

    def edit(sections: dict[str, list[str]]) -> None:
        path = tmp_path / "support_wrap_ops.yaml"
        path.write_text(yaml.safe_dump(sections))
        monkeypatch.setattr(apis, "SUPPORT_LIST", path)

    return edit


def record(probe: Probe) -> list[str]:
    debugger = probe.debugger("L1")
    debugger.start()
    x = torch.ones(2, 2)
    F.rms_norm(F.relu(torch.matmul(x, x)) + 1, (2,))
    torch.special.expit(x)
    debugger.stop()
    debugger.step()
    return list(probe.data())


@pytest.mark.spec("R17", "PT")
def test_only_what_is_listed_is_recorded(
    probe: Probe, edited: Callable[[dict[str, list[str]]], None]
) -> None:
    edited({**LISTED, "functional": [name for name in LISTED["functional"] if name != "relu"]})
    calls = ("Torch.matmul", "Torch.relu", "Tensor.__add__", "Functional.rms_norm")
    assert record(probe) == [f"{call}.0.forward" for call in calls]


@pytest.mark.spec("R17", "PT")
def test_what_is_added_to_the_list_is_recorded(
    probe: Probe, edited: Callable[[dict[str, list[str]]], None]
) -> None:
    edited({"functional": ["rms_norm"], "torch": ["special.expit"], "tensor": [], "aten": []})
    assert record(probe) == ["Functional.rms_norm.0.forward", "Torch.special.expit.0.forward"]


@pytest.mark.spec("R17", "PT")
def test_the_list_that_is_shipped(probe: Probe) -> None:
    assert record(probe) == [
        "Torch.matmul.0.forward",
        "Functional.relu.0.forward",
        "Tensor.__add__.0.forward",
        "Functional.rms_norm.0.forward",
    ]


def test_names_that_torch_lacks_are_skipped(
    probe: Probe, edited: Callable[[dict[str, list[str]]], None]
) -> None:
    edited(
        {
            "functional": ["relu", "no_such"],
            "torch": ["no.such", "linalg.no_such"],
            "torch_npu": ["npu_linear"],
        }
    )
    assert record(probe) == ["Functional.relu.0.forward"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("functional: [relu", "cannot be read"),
        ("functional: relu", "section functional of the support list"),
        ("unknown: [relu]", "must hold the sections"),
        ("- relu", "must hold the sections"),
        ("functional: [1]", "must be a list of names"),
    ],
)
def test_a_damaged_list_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        apis.load(path)
    assert str(path) in str(caught.value)


def test_aten_operators_called_directly(probe: Probe) -> None:
    debugger = probe.debugger("L1")
    x = torch.ones(2, 2, requires_grad=True)
    debugger.start()
    torch.ops.aten.mm(torch.ops.aten.relu.default(x), x).sum().backward()
    debugger.stop()
    debugger.step()
    names = [name for name in probe.data() if name.startswith("Aten")]
    assert names == ["Aten.relu.0.forward", "Aten.mm.0.forward", "Aten.mm.0.backward", "Aten.relu.0.backward"]
