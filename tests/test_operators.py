"""The table of operators: its names, its rows beside what torch computes, and that there is no second one."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from msprobe.name import CallName
from msprobe.operators import concept, is_reversed, operator_of
from msprobe.operators.names import _SAME, _WORD
from msprobe.operators.table import TABLE
from msprobe.verdict.difference import Difference
from msprobe.verdict.directions import GAIN
from msprobe.verdict.gradients import Backward, backward_reach
from msprobe.verdict.tolerance import Argument, forward_reach

SRC = Path(__file__).resolve().parent.parent / "src"

# Lists of names that stay where they are, by file, each with its reason.
ALLOWED = {
    "msprobe/analyse/standard_table.py": "run_ut's standards are specified by the names of APIs",
    "msprobe/report/advice.py": "the specified advice names these APIs",
    "msprobe/pytorch/seeds.py": "seed_all is specified to switch off these dropouts",
    "msprobe/pytorch/intercept.py": "functions of torch that do not count what they change",
    "msprobe/mindspore/seeds.py": "the classes of MindSpore that are replaced to switch dropout off",
    "msprobe/mindspore/msadapter_seeds.py": "the functions that are replaced to switch dropout off",
}
# Words that are also names of statistics, of types, or of keys of files.
OTHER_MEANINGS = {"max", "min", "mean", "norm", "sum", "maximum", "minimum", "type", "shape", "size", "dim"}
OTHER_MEANINGS |= {"bool", "int", "float", "half", "double", "bfloat16", "long", "short", "byte", "char"}
OTHER_MEANINGS |= {"cpu", "cuda", "npu", "all", "range", "stack", "slice", "tensor", "set", "to", "and", "or"}
OTHER_MEANINGS |= {"is", "not", "rank", "index", "item", "complex", "mode", "copy", "step", "inner", "outer"}


def name(owner: str, direction: str = "forward") -> CallName:
    return CallName.parse(
        f"{owner}.{direction}.0" if owner.startswith(("Module", "Cell")) else f"{owner}.0.{direction}"
    )


# ---- one table ----


def lists_of_operators(src: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Each collection of three or more names of operators outside the table: file, line, names."""
    for path in sorted(src.rglob("*.py")):
        where = path.relative_to(src).as_posix()
        if where.startswith("msprobe/operators/"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            words = _words(node)
            found = [word for word in words if _is_operator(word)]
            if len(found) >= 3 and 2 * len(found) >= len(words):
                yield where, node.lineno, found  # type: ignore[attr-defined]


def _words(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        items: list[ast.expr | None] = list(node.elts)
    elif isinstance(node, ast.Dict):
        items = list(node.keys)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." not in node.value:
        return node.value.split()
    else:
        return []
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]


def _is_operator(word: str) -> bool:
    plain = word.rpartition(".")[2].replace("_", "").lower()
    return plain not in OTHER_MEANINGS and (plain in TABLE or plain in _WORD)


def comparisons(src: Path) -> Iterator[tuple[str, int]]:
    """Each place outside the table and pairing/ that asks for an operator by its name: file and line."""
    for path in sorted(src.rglob("*.py")):
        where = path.relative_to(src).as_posix()
        if where.startswith(("msprobe/operators/", "msprobe/pairing/")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            asked = any(isinstance(part, ast.Attribute) and part.attr == "concept" for part in parts)
            if asked and any(_strings(part) for part in parts):
                yield where, node.lineno  # type: ignore[attr-defined]


def _strings(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(node))


def test_there_is_one_table() -> None:
    found = list(lists_of_operators(SRC))
    assert [each for each in found if each[0] not in ALLOWED] == []
    assert {where for where, _, _ in found} == set(ALLOWED)  # nothing is allowed that is not there
    assert list(comparisons(SRC)) == []


def test_a_second_table_is_seen(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(
        'NAMES = frozenset({"relu", "max_pool2d", "dropout"})\n'
        'TEXT = "add sub mul div"\n'
        'KEYS = {"softmax": 1, "gelu": 2, "linear": 3}\n'
        'def is_product(operator): return operator.concept in ("matmul", "linear")\n'
        'STATISTICS = ("max", "min", "mean", "norm")\n',
        encoding="utf-8",
    )
    assert sorted(line for _, line, _ in lists_of_operators(tmp_path)) == [1, 2, 3]
    assert list(comparisons(tmp_path)) == [("other.py", 4)]


# ---- names ----


def test_no_word_has_two_meanings() -> None:
    assert [word for word in _WORD if word in TABLE] == []
    words = [word for words in _SAME.values() for word in words.split()]
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("owner", "word"),
    [
        ("Torch.add", "add"),
        ("Tensor.__iadd__", "add"),
        ("Tensor.__radd__", "add"),
        ("Aten.add_", "add"),
        ("Primitive.net.add.Add", "add"),
        ("Torch._foreach_add_", "add"),
        ("Tensor.__imod__", "remainder"),
        ("Tensor.__rand__", "and"),
        ("Torch.rand", "rand"),
        ("Tensor.__int__", "to"),
        ("Torch.linalg.inv", "inverse"),
        ("Functional.inv", "reciprocal"),
        ("Torch.linalg.norm", "norm"),
        ("Torch.linalg.diagonal", "diagonal"),
        ("Aten.native_layer_norm", "layernorm"),
        ("Aten._native_batch_norm_legit", "batchnorm"),
        ("Functional.gather", "indexselect"),
        ("Tensor.gather", "gather"),
        ("Functional.tensor_scatter_add", "scatteradd"),
        ("NPU.npu_dtype_cast", "to"),
        ("Aten.fft_ifft2", "ifft2"),
        ("Module.blocks.0.ln.LayerNorm", "layernorm"),
        ("Cell.net.head.Dense", "linear"),
        ("Tensor.resize_", "resize"),
    ],
)
def test_concepts(owner: str, word: str) -> None:
    assert concept(name(owner)) == word


def test_facts_that_follow_from_the_name() -> None:
    assert operator_of(name("Tensor.mul_")).overwrites
    assert not operator_of(name("Tensor.__mul__")).overwrites
    assert is_reversed(name("Tensor.__rsub__"))
    assert is_reversed(name("Torch.rsub"))
    assert not is_reversed(name("Tensor.__radd__"))
    assert operator_of(
        name("Primitive.net.a.RandomSomething")
    ).is_random  # no row, and yet no chance is taken
    assert not operator_of(name("Aten.rrelu_with_noise_backward")).is_random
    assert not operator_of(name("Torch.grid_sampler_2d")).is_random
    assert not operator_of(name("Functional.pixel_shuffle")).is_random


def test_modules_of_users_have_no_row() -> None:
    """A class that a framework does not bring may do anything, whatever it is called."""
    assert operator_of(name("Torch.resize_")).is_undefined
    assert not operator_of(name("Module.pre.Resize")).is_undefined
    assert operator_of(name("Module.body.Sequential")).kind == "unknown"
    assert operator_of(name("Module.body.Add")).kind == "unknown"
    assert operator_of(name("Module.body.GELU")).kind == "smooth"
    assert operator_of(name("Cell.body.SoftmaxCrossEntropyWithLogits")).is_loss


def test_what_other_ranks_gave_is_not_moved() -> None:
    gathered = operator_of(name("Distributed.gather"))
    assert (gathered.kind, gathered.communicates) == ("unknown", True)


@pytest.mark.parametrize(
    ("column", "owners"),
    [
        (
            "is_undefined",
            "Torch.empty Torch.empty_like Tensor.new_empty NPU.empty_with_format Tensor.resize_as_",
        ),
        (
            "fills",
            "Tensor.fill_ Torch.full Tensor.masked_fill_ Tensor.__setitem__ Functional.pad Torch.where",
        ),
        ("casts", "Tensor.to Tensor.type_as Tensor.half Tensor.view Tensor.copy_ Tensor.set_ Tensor.numpy"),
        (
            "is_lowered",
            "Tensor.__matmul__ Torch.bmm Functional.conv_transpose2d Functional.prelu Torch.einsum",
        ),
        (
            "is_lowered",
            "Functional.scaled_dot_product_attention Torch.lstm_cell Torch.addmv Torch.chain_matmul",
        ),
        ("reads_bits", "Torch.nextafter Torch.frexp"),
        (
            "gives_tuple",
            "Tensor.split Torch.split_with_sizes Torch.unsafe_chunk Tensor.unbind Torch.meshgrid",
        ),
        ("is_random", "Functional.dropout2d Tensor.bernoulli_ Torch.randperm Functional.random_categorical"),
        ("is_shape", "Tensor.shape Functional.rank Tensor.size"),
    ],
)
def test_columns(column: str, owners: str) -> None:
    assert [owner for owner in owners.split() if not getattr(operator_of(name(owner)), column)] == []
    assert not getattr(operator_of(name("Torch.sin")), column)


def recorded(path: str, prefixes: dict[str, str]) -> list[CallName]:
    sections = yaml.safe_load((SRC / path).read_text(encoding="utf-8"))
    return [
        name(f"{prefixes.get(section, 'Torch')}.{api}") for section, apis in sections.items() for api in apis
    ]


def test_how_many_recorded_apis_have_a_row() -> None:
    """Those of unknown behaviour have none: decompositions, gradients of aten, fused kernels."""
    torch_names = recorded(
        "msprobe/pytorch/hook_module/support_wrap_ops.yaml",
        {"tensor": "Tensor", "distributed": "Distributed"},
    )
    mindspore_names = recorded(
        "msprobe/mindspore/dump/hook_cell/support_wrap_ops.yaml",
        {
            "ops": "Functional",
            "tensor": "Tensor",
            "mint.distributed": "Distributed",
            "comm_func": "Distributed",
        },
    )
    known = [sum(concept(each) in TABLE for each in names) for names in (torch_names, mindspore_names)]
    assert known[0] >= 0.72 * len(torch_names)
    assert known[1] >= 0.84 * len(mindspore_names)


# ---- rows beside what torch computes ----

GENERATOR = torch.Generator().manual_seed(16)
POINTS = torch.cat(
    [torch.linspace(-6, 6, 40_001, dtype=torch.float64), torch.randn(999, generator=GENERATOR).double()]
)


def unary(word: str) -> object:
    """The function of torch that computes a concept of one tensor, if there is one."""
    for holder in (torch.nn.functional, torch, torch.special):
        for spelt in (word, word.replace("hard", "hard_"), "leaky_relu" if word == "leakyrelu" else word):
            if callable(function := getattr(holder, spelt, None)):
                return function
    return None


ELEMENTWISE = [
    word
    for word, row in TABLE.items()
    if row.kind == "smooth" and not row.is_random and not row.row_total and not row.is_loss
]


def test_slopes() -> None:
    """No smooth function of single numbers is steeper than its row says, and none exceeds its bound."""
    seen = []
    for word in ELEMENTWISE:
        function = unary(word)
        try:
            y = function(POINTS)  # type: ignore[operator]
        except (TypeError, RuntimeError, ValueError):
            continue
        if not isinstance(y, torch.Tensor) or y.shape != POINTS.shape or word.startswith(("cum", "msort")):
            continue
        seen.append(word)
        x = POINTS[:40_001]
        steepest = ((y[1:40_001] - y[:40_000]) / (x[1:] - x[:-1])).abs()
        jumps = torch.count_nonzero(steepest > TABLE[word].slope * 1.001)
        assert jumps <= (2 if TABLE[word].decides else 0), word
        assert not TABLE[word].bounded or y.abs().max() <= TABLE[word].bounded, word
    assert len(seen) >= 25


def test_rows_that_add_up_to_one() -> None:
    x = torch.randn(8, 16, generator=GENERATOR, dtype=torch.float64)
    ones = torch.ones(8, dtype=torch.float64)
    for word, row in TABLE.items():
        if row.row_total:
            spelt = {"logsoftmax": "log_softmax"}.get(word, word)
            y = getattr(torch.nn.functional, spelt)(x, dim=-1)
            total = (y if row.row_total == "numbers" else y.exp()).sum(-1)
            torch.testing.assert_close(total, ones)


MOVES = {
    "reshape": lambda x: torch.reshape(x, (4, -1)),
    "permute": lambda x: torch.permute(x, (2, 0, 1)),
    "fliplr": torch.fliplr,
    "tril": torch.tril,
    "diagflat": torch.diagflat,
    "unfold": lambda x: torch.nn.functional.unfold(x[None], 2),
    "pixelshuffle": lambda x: torch.nn.functional.pixel_shuffle(x, 2),
    "upsamplenearest": lambda x: torch.nn.functional.interpolate(x[None], scale_factor=2, mode="nearest"),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 1), mode="reflect"),
    "nantonum": torch.nan_to_num,
    "blockdiag": lambda x: torch.block_diag(*x[0]),
    "atleast3d": torch.atleast_3d,
    "cartesianprod": lambda x: torch.cartesian_prod(x[0, 0], x[1, 0]),
    "maxunpool2d": lambda x: torch.nn.functional.max_unpool2d(
        *torch.nn.functional.max_pool2d(x[None], 2, return_indices=True), 2
    ),
    "diagonalscatter": lambda x: torch.diagonal_scatter(x[0], x[1].diagonal()),
    "indexcopy": lambda x: torch.index_copy(x, 0, torch.tensor([1, 0]), x[:2]),
    "maskedfill": lambda x: torch.masked_fill(x, x > 0, 0.0),
    "fftshift": torch.fft.fftshift,
}


@pytest.mark.parametrize("word", MOVES)
def test_moves(word: str) -> None:
    """Every number of the result is one of the argument, or zero, bit for bit."""
    assert TABLE[word].kind == "moves"
    x = torch.randn(4, 6, 6, generator=GENERATOR)
    moved = MOVES[word](x)  # type: ignore[no-untyped-call]
    assert set(moved.flatten().tolist()) <= {*x.flatten().tolist(), 0.0}


LAST = {
    **{word: getattr(torch.nn.functional, word) for word in ("softmax", "softmin", "normalize")},
    **{
        word: getattr(torch, word)
        for word in ("logsumexp", "cumsum", "cumprod", "prod", "mean", "sum", "amax")
    },
    **{word: getattr(torch, word) for word in ("norm", "std", "var")},
    "logsoftmax": torch.nn.functional.log_softmax,
    "sort": lambda x, dim: x.sort(dim).values,
    "topk": lambda x, dim: x.topk(5, dim).values,
    "median": lambda x, dim: x.median(dim).values,
    "layernorm": lambda x, dim: torch.nn.functional.layer_norm(x, x.shape[dim:]),
}
# Where the result is much smaller than what it is made of, or has poles, more than norms must be known. These
# are gaps of the tolerance, by the data on which they show.
GAPS = {
    "mean far larger than spread": {"var", "std", "pdist", "layernorm"},
    "errors that do not shrink with small numbers": {"rsqrt", "reciprocal", "prod", "cumprod", "sign", "sgn"},
    "slopes of the size of the argument, or poles": {"expm1", "sinh", "cosh", "tan"},
}


def noisy() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Arguments of several kinds, and errors of each: of the size of each number, and of one size for all."""
    generator = torch.Generator().manual_seed(16)
    normal, positive = torch.randn(64, 128, generator=generator), torch.rand(64, 128, generator=generator)
    for kind in (normal, 3 * positive + 0.01, 1 + 1e-3 * normal, normal**5, 30 * normal, 1e-3 * normal):
        x, noise = kind.double(), 1e-6 * torch.randn(64, 128, generator=generator).double()
        yield from ((x, x * noise), (x, x.square().mean().sqrt() * noise))


def test_what_the_table_says_of_errors_holds() -> None:
    """An error of the argument makes no larger error of the result than `Reach` says, but for known gaps."""
    beyond, seen = set(), set()
    for word, row in TABLE.items():
        if row.is_random or row.is_loss or row.kind in ("makes", "moves") or word == "upsample":
            continue  # the last has another name in torch
        for x, noise in noisy():
            y, moved = (_of_one(word, each) for each in (x, x + noise))
            if y is None or moved is None:
                break
            error = (moved - y).abs()
            if not torch.isfinite(error).all():
                continue
            seen.add(word)
            given = Argument(_difference(x, noise), tuple(x.shape), 0)
            reach = forward_reach(row, _difference(y.abs(), error), [given], [])
            flips = reach.flips * float(noise.norm() / x.norm()) + 4 / y.numel() if reach.flips else 0.0
            flipped = 2 * math.sqrt(min(flips, 1.0)) * float(y.abs().norm())
            if not float(error.norm()) <= GAIN * reach.of([float(noise.norm())]) + flipped:
                beyond.add(word)
    assert beyond == set().union(*GAPS.values())
    assert len(seen) >= 80


def _of_one(word: str, x: torch.Tensor) -> torch.Tensor | None:
    """What torch computes of one tensor, if that has fractions."""
    try:
        found = LAST[word](x, dim=-1) if word in LAST else unary(word)(x)  # type: ignore[operator]
    except (TypeError, RuntimeError, ValueError, IndexError):
        return None
    is_float = isinstance(found, torch.Tensor) and (found.is_floating_point() or found.is_complex())
    return found if is_float else None


def _difference(x: torch.Tensor, error: torch.Tensor) -> Difference:
    known = float(error.norm()), float(x.norm()), x.numel(), float(x.abs().max())
    return Difference("content", False, *known, 2.0**-24)


def test_gradients_of_rows_that_repeat_are_sums() -> None:
    """Rows of an embedding that occur several times are added in any order, however large the table is."""
    gradient = Argument(Difference("content", True, 0.0, 8.0, 512, 1.0, 2.0**-24), (16, 32), 0)
    weight = Argument(Difference("content", True, 0.0, 8.0, 32_000, 1.0, 2.0**-24), (1_000, 32), 0)
    given = Backward([gradient], [weight], [], [])
    result = Difference("content", False, 1e-7, 8.0, 32_000, 1.0, 2.0**-24)
    assert not backward_reach(TABLE["embedding"], result, 0, given).is_exact
    assert backward_reach(TABLE["embedding"], result, 0, given).summands == 16
    assert backward_reach(TABLE["permute"], result, 0, given).is_exact
