"""Two frameworks without a mapping: every call that has a counterpart is found, and none wrongly."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from cross_case import Crossed, crossed
from msprobe import store
from msprobe.compare import compare, compare_recordings
from msprobe.kernels import Statistics
from msprobe.name import FORWARD, CallName
from msprobe.pairing.align import align
from msprobe.pairing.chain import Candidate, heaviest
from msprobe.pairing.likeness import Likeness
from msprobe.pairing.mapping import NO_MAPPINGS, CellMapping, Line, Mappings
from msprobe.pairing.match import Certainty, match
from msprobe.record import Header, Leaf, Record, Recording

__all__ = ["crossed"]


def tensor(value: float, *shape: int) -> Leaf:
    stats = Statistics(value, -value, value / 3, 2 * value)
    return Leaf("Tensor", dtype="Float32", shape=shape, stats=stats)


def call(
    name: str,
    inputs: Sequence[Leaf | None] = (),
    outputs: Sequence[Leaf | None] = (),
    inside: str | None = None,
    **parameters: Leaf,
) -> Record:
    parsed = CallName.parse(name)
    fields = {"input_args": list(inputs), "input_kwargs": {}, "output": list(outputs)}
    if parsed.is_module:
        fields["parameters"] = parameters  # type: ignore[assignment]
    return Record(parsed, fields, parent=inside, has_parent=True)


def recording(framework: str, *records: Record) -> Recording:
    return Recording(Header("statistics", "mix", framework), {str(r.name): r for r in records}, framework)


def found(target: Recording, golden: Recording) -> dict[str, str]:
    """The forward calls that were paired, each with one."""
    names = align(target, golden).names
    calls = {key for key, record in target.records.items() if record.name.direction == FORWARD}
    return {a: b for a, b in names.items() if a in calls}


# ---- a real pair ----


def hand_written(level: str) -> dict[str, str]:
    """Every call of the golden pair that has a counterpart."""
    modules = {
        "embed.Dense": "embed.Linear",
        "head.Dense": "head.Linear",
        "relu.ReLU": "relu.ReLU",
    }
    for layer in ("layers.0", "layers.1"):
        modules |= {
            f"{layer}.Layer": f"{layer}.Layer",
            f"{layer}.norm.LayerNorm": f"{layer}.norm.LayerNorm",
            f"{layer}.attention.Attn": f"{layer}.self_attention.Attn",
            f"{layer}.attention.qkv_proj.Dense": f"{layer}.self_attention.query_key_value.Linear",
            f"{layer}.attention.out_proj.Dense": f"{layer}.self_attention.dense.Linear",
        }
    apis = {
        "Functional.abs.0": "Torch.abs.0",
        "Tensor.reshape.0": "Tensor.reshape.0",
        "MintFunctional.relu.0": "Functional.relu.0",
        "Primitive.relu.ReLU.0": "Functional.relu.1",
        "Mint.square.0": "Torch.square.0",
        "Mint.mean.0": "Torch.mean.0",
    }
    for number in (0, 1):
        apis |= {
            f"Functional.softmax.{number}": f"Functional.softmax.{number}",
            f"Mint.mul.{number}": f"Torch.mul.{number}",
            f"Tensor.__add__.{number}": f"Tensor.__add__.{number}",
            f"Primitive.layer_norm.LayerNorm.{number}": f"Functional.layer_norm.{number}",
        }
    pairs = (
        {} if level == "L1" else {f"Cell.{a}.forward.0": f"Module.{b}.forward.0" for a, b in modules.items()}
    )
    return pairs if level == "L0" else pairs | {f"{a}.forward": f"{b}.forward" for a, b in apis.items()}


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("kind", ["tensor", "statistics_statistics"])
@pytest.mark.parametrize("target", ["ms", "msn"])
def test_all_counterparts_of_a_real_pair_are_found(
    crossed: Crossed, target: str, level: str, kind: str
) -> None:
    """msn: one number of the target is another, so that values part."""
    ours, theirs = (store.read(crossed.run(f"{side}_{level}_{kind}"))[0] for side in (target, "pt"))
    assert found(ours, theirs) == hand_written(level)


def transformer() -> tuple[dict[str, str], dict[str, str]]:
    """The modules and APIs of a transformer that have a counterpart: in PyTorch k and v come before q.

    Dense of MindSpore multiplies, adds and reshapes, which PyTorch does in one call; view is not recorded.
    """
    modules = {"embed.Dense": "wte.Linear", "head.Dense": "lm_head.Linear"}
    apis: dict[str, str] = {}
    for n in (0, 1):
        here, there = f"encoder.{n}", f"h.{n}"
        modules |= {
            f"{here}.EncoderLayer": f"{there}.Block",
            f"{here}.norm1.LayerNorm": f"{there}.ln_1.LayerNorm",
            f"{here}.attention.SelfAttention": f"{there}.attn.Attention",
            f"{here}.attention.query.Dense": f"{there}.attn.q_proj.Linear",
            f"{here}.attention.key.Dense": f"{there}.attn.k_proj.Linear",
            f"{here}.attention.value.Dense": f"{there}.attn.v_proj.Linear",
            f"{here}.attention.out.Dense": f"{there}.attn.o_proj.Linear",
            f"{here}.norm2.LayerNorm": f"{there}.ln_2.LayerNorm",
            f"{here}.ffn.FeedForward": f"{there}.mlp.MLP",
            f"{here}.ffn.dense1.Dense": f"{there}.mlp.fc1.Linear",
            f"{here}.ffn.act.GELU": f"{there}.mlp.gelu.GELU",
            f"{here}.ffn.dense2.Dense": f"{there}.mlp.fc2.Linear",
        }
        apis |= {
            f"Primitive.layer_norm.LayerNorm.{2 * n}": f"Functional.layer_norm.{2 * n}",
            f"Primitive.layer_norm.LayerNorm.{2 * n + 1}": f"Functional.layer_norm.{2 * n + 1}",
            f"Functional.transpose.{5 * n}": f"Tensor.permute.{4 * n + 2}",
            f"Functional.transpose.{5 * n + 1}": f"Tensor.permute.{4 * n}",
            f"Functional.transpose.{5 * n + 2}": f"Tensor.permute.{4 * n + 1}",
            f"Functional.transpose.{5 * n + 3}": f"Tensor.transpose.{n}",
            f"Functional.matmul.{2 * n}": f"Torch.matmul.{2 * n}",
            f"Functional.div.{n}": f"Tensor.__truediv__.{n}",
            f"Functional.softmax.{n}": f"Functional.softmax.{n}",
            f"Functional.matmul.{2 * n + 1}": f"Torch.matmul.{2 * n + 1}",
            f"Functional.transpose.{5 * n + 4}": f"Tensor.permute.{4 * n + 3}",
            f"Functional.reshape.{4 * n + 3}": f"Tensor.reshape.{n}",
            f"Tensor.__add__.{2 * n}": f"Tensor.__add__.{2 * n}",
            f"Functional.gelu.{n}": f"Functional.gelu.{n}",
            f"Tensor.__add__.{2 * n + 1}": f"Tensor.__add__.{2 * n + 1}",
        }
    apis |= {f"Functional.mean.{n}": f"Torch.mean.{n}" for n in (0, 1)}
    return modules, apis | {"Functional.square.0": "Torch.square.0"}


def resnet() -> tuple[dict[str, str], dict[str, str]]:
    """Where MindSpore has the module of a ReLU in a block PyTorch has functions, and it pools."""
    modules = {
        "stem.Conv2d": "conv1.Conv2d",
        "stem_bn.BatchNorm2d": "bn1.BatchNorm2d",
        "relu.ReLU": "relu.ReLU",
        "stage1.SequentialCell": "layer1.Sequential",
        "stage2.SequentialCell": "layer2.Sequential",
        "stage2.0.shortcut.SequentialCell": "layer2.0.downsample.Sequential",
        "stage2.0.shortcut.0.Conv2d": "layer2.0.downsample.0.Conv2d",
        "stage2.0.shortcut.1.BatchNorm2d": "layer2.0.downsample.1.BatchNorm2d",
        "classifier.Dense": "fc.Linear",
    }
    for here, there in (("stage1.0", "layer1.0"), ("stage1.1", "layer1.1"), ("stage2.0", "layer2.0")):
        modules[f"{here}.ResBlock"] = f"{there}.BasicBlock"
        for part in ("conv1.Conv2d", "bn1.BatchNorm2d", "conv2.Conv2d", "bn2.BatchNorm2d"):
            modules[f"{here}.{part}"] = f"{there}.{part}"
    apis = {f"Primitive.conv2d.Conv2D.{n}": f"Functional.conv2d.{n}" for n in range(8)}
    apis |= {f"Primitive.bn_train.BatchNorm.{n}": f"Functional.batch_norm.{n}" for n in range(8)}
    apis |= {f"Primitive.relu.ReLU.{n}": f"Functional.relu.{n}" for n in range(7)}
    apis |= {f"Tensor.__add__.{n}": f"Tensor.__add__.{n}" for n in range(3)}
    return modules, apis | {"Functional.square.0": "Torch.square.0", "Functional.mean.1": "Torch.mean.0"}


NETS = {"transformer": transformer, "resnet": resnet}


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("net", NETS)
def test_all_counterparts_of_nets_with_other_names_and_order_are_found(
    crossed: Crossed, net: str, level: str
) -> None:
    ours, theirs = (store.read(crossed.run(f"nets/{side}_{net}_{level}"))[0] for side in ("ms", "pt"))
    modules, apis = NETS[net]()
    expected: dict[str, str] = {}
    if level != "L1":
        expected |= {f"Cell.{a}.forward.0": f"Module.{b}.forward.0" for a, b in modules.items()}
    if level != "L0":
        expected |= {f"{a}.forward": f"{b}.forward" for a, b in apis.items()}
    assert found(ours, theirs) == expected


@pytest.mark.parametrize("net", NETS)
def test_nets_that_are_the_same_agree_in_all_that_is_paired(crossed: Crossed, net: str) -> None:
    """So no place is beside a wrong one; every parameter and its gradient is among them."""
    (comparison,) = compare(crossed.run(f"nets/ms_{net}_mix"), crossed.run(f"nets/pt_{net}_mix"))
    levels = {
        v.level for f, v in zip(comparison.findings, comparison.verdicts, strict=True) if not f.pair.reason
    }
    assert levels <= {"same", "rounding", "passed on"}
    golden = [f.pair for f in comparison.findings if f.pair.golden is not None]
    lost = [p.golden.name for p in golden if p.golden and p.reason and "parameters" in p.golden.name]
    assert lost == []


@pytest.mark.parametrize(
    ("target", "culprit"),
    [
        ("eps", "Primitive.layer_norm.LayerNorm.1.forward.output.0"),
        ("gelu", "Functional.gelu.0.forward.input.approximate"),
    ],
)
def test_an_injected_difference_is_named(crossed: Crossed, target: str, culprit: str) -> None:
    """The epsilon of the second layer norms, and a GELU that is approximated."""
    (comparison,) = compare(crossed.run(f"nets/ms_{target}_mix"), crossed.run("nets/pt_transformer_mix"))
    assert comparison.located.culprit is not None
    assert comparison.located.culprit.place.name == culprit


def test_backward_calls_and_gradients_follow_their_forward_calls(crossed: Crossed) -> None:
    ours, theirs = (store.read(crossed.run(f"{side}_mix_statistics_statistics"))[0] for side in ("ms", "pt"))
    rename = align(ours, theirs)
    forward = hand_written("mix")
    expected = {}
    for a, b in forward.items():
        for word in ("backward",):
            x, y = a.replace("forward", word), b.replace("forward", word)
            if x in ours.records and y in theirs.records:
                expected[x] = y
        if a.startswith("Cell"):
            x, y = (name.replace(".forward.0", ".parameters_grad") for name in (a, b))
            if x in ours.records and y in theirs.records:
                expected[x] = y
    calls = {a: b for a, b in rename.names.items() if a in ours.records}
    assert {a: b for a, b in calls.items() if a not in forward} == expected
    assert rename.sure.keys() == rename.names.keys()


def test_parameters_are_paired_by_what_they_are(crossed: Crossed) -> None:
    ours, theirs = (store.read(crossed.run(f"{side}_mix_statistics_statistics"))[0] for side in ("ms", "pt"))
    pairs = match(ours, theirs, rename=align(ours, theirs))
    norm = "layers.0.norm.LayerNorm"
    got = {p.target.name: p.golden and p.golden.name for p in pairs if p.target and norm in p.target.name}
    assert got[f"Cell.{norm}.forward.0.parameters.gamma"] == f"Module.{norm}.forward.0.parameters.weight"
    assert got[f"Cell.{norm}.forward.0.parameters.beta"] == f"Module.{norm}.forward.0.parameters.bias"
    assert got[f"Cell.{norm}.parameters_grad.gamma"] == f"Module.{norm}.parameters_grad.weight"
    primitive = {
        p.target.name: p.golden.name
        for p in pairs
        if p.target and p.golden and p.target.name.startswith("Primitive.layer_norm.LayerNorm.0.forward")
    }
    assert primitive == {
        f"Primitive.layer_norm.LayerNorm.0.forward.{a}": f"Functional.layer_norm.0.forward.{b}"
        for a, b in (
            ("input.0", "input.0"),
            ("input.1", "input.2"),
            ("input.2", "input.3"),
            ("output.0", "output.0"),
        )
    }


# ---- made by hand ----

NORM = ("Cell.bn.BatchNorm2d.forward.0", "Module.bn.BatchNorm2d.forward.0")


def norm_runs(mean: float, golden_mean: float) -> tuple[Recording, Recording]:
    """A batch norm, whose statistics are parameters in MindSpore and buffers in PyTorch."""
    ours = call(
        NORM[0], [tensor(1, 4, 3)], [tensor(2, 4, 3)], gamma=tensor(3, 3), moving_mean=tensor(mean, 3)
    )
    theirs = call(NORM[1], [tensor(1, 4, 3)], [tensor(2, 4, 3)], weight=tensor(3, 3))
    statistics = {"running_mean": tensor(golden_mean, 3)}
    changed = {"running_mean": tensor(golden_mean * 2, 3)}
    fields = {**theirs.fields, "buffers": statistics, "buffers_after": changed}
    return recording("mindspore", ours), recording("pytorch", theirs._replace(fields=fields))


@pytest.mark.parametrize(("mean", "culprit"), [(1.0, None), (3.0, f"{NORM[0]}.parameters.moving_mean")])
@pytest.mark.parametrize("mappings", [NO_MAPPINGS, NO_MAPPINGS._replace(cell=CellMapping())])
def test_running_statistics_are_paired_across_frameworks(
    mean: float, culprit: str | None, mappings: Mappings
) -> None:
    found = compare_recordings(*norm_runs(mean, 1.0), mappings=mappings)
    names = {f.pair.target.name: f.pair.golden for f in found.findings if f.pair.target is not None}
    other = names[f"{NORM[0]}.parameters.moving_mean"]
    assert other is not None and other.name == f"{NORM[1]}.buffers.running_mean"
    assert not any(f.pair.target is None for f in found.findings)  # MindSpore keeps no others
    named = found.located.culprit
    assert (named and named.place.name) == culprit


def layer(name: str, value: float) -> list[Record]:
    """A layer whose class has another name in the other framework."""
    forward = call(f"{name}.forward.0", [tensor(1, 4, 3)], [tensor(2, 4, 3)], weight=tensor(3, 3, 3))
    gradient = Record(CallName.parse(f"{name}.parameters_grad"), {"weight": [tensor(value, 3, 3)]})
    return [forward, gradient]


@pytest.mark.parametrize(
    ("mapping", "is_judged"),
    [(CellMapping(), True), (CellMapping("cells.yaml", (Line("a.Dense", "b.Linear", 1),)), False)],
)
def test_mappings_that_name_nothing_leave_our_verdict_to_the_alignment(
    mapping: CellMapping, is_judged: bool
) -> None:
    runs = (
        recording(framework, *layer(name, value))
        for framework, name, value in (("mindspore", "Cell.fc.Dense", 5), ("pytorch", "Module.fc.Linear", 4))
    )
    found = compare_recordings(*runs, mappings=NO_MAPPINGS._replace(cell=mapping))
    assert all(None in (f.pair.target, f.pair.golden) for f in found.findings)  # the table knows no Linear
    named = found.located.culprit
    assert (named and named.place.name) == ("Cell.fc.Dense.parameters_grad.weight" if is_judged else None)


X, Y = tensor(1.0, 2, 4), tensor(2.0, 2, 4)


def test_a_module_around_all_the_others_is_opened() -> None:
    w, v = tensor(5.0, 4, 4), tensor(7.0, 4, 4)
    target = recording(
        "mindspore",
        call("Cell.a.Dense.forward.0", [X], [Y], weight=w),
        call("Cell.b.Dense.forward.0", [Y], [X], weight=v),
    )
    around = "Module.module.Net.forward.0"
    golden = recording(
        "pytorch",
        call("Module.module.a.Linear.forward.0", [X], [Y], around, weight=w),
        call("Module.module.b.Linear.forward.0", [Y], [X], around, weight=v),
        call(around, [X], [X]),
    )
    assert found(target, golden) == {
        f"Cell.{name}.Dense.forward.0": f"Module.module.{name}.Linear.forward.0" for name in "ab"
    }


def test_modules_that_are_called_in_another_order_are_told_by_their_parameters() -> None:
    weights = {name: tensor(number + 3.0, 4, 4) for number, name in enumerate("qkv")}
    outs = {name: tensor(number + 10.0, 2, 4) for number, name in enumerate("qkv")}

    def run(framework: str, prefix: str, kind: str, order: str) -> Recording:
        return recording(
            framework,
            *(call(f"{prefix}.{n}.{kind}.forward.0", [X], [outs[n]], weight=weights[n]) for n in order),
        )

    pairs = found(run("mindspore", "Cell", "Dense", "qkv"), run("pytorch", "Module", "Linear", "kvq"))
    assert pairs == {f"Cell.{n}.Dense.forward.0": f"Module.{n}.Linear.forward.0" for n in "qkv"}


def test_an_extra_call_shifts_nothing() -> None:
    values = [tensor(value, 2, 4) for value in (1.0, 2.0, 3.0, 4.0)]

    def run(framework: str, api: str, places: Sequence[int]) -> Recording:
        calls = [
            call(f"{api}.{number}.forward", [values[place]], [values[place + 1]])
            for number, place in enumerate(places)
        ]
        return recording(framework, *calls)

    pairs = found(run("mindspore", "Functional.exp", (0, 1, 2)), run("pytorch", "Torch.exp", (0, 2)))
    assert pairs == {
        "Functional.exp.0.forward": "Torch.exp.0.forward",
        "Functional.exp.2.forward": "Torch.exp.1.forward",
    }


def branches(framework: str, order: str, times: float, passes: int = 1) -> Recording:
    """A net with two branches, each a product with its weight and what is made of it; `times`: its values."""
    dense, exp = {
        "mindspore": ("Functional.dense", "Mint.exp"),
        "pytorch": ("Functional.linear", "Torch.exp"),
    }[framework]
    values = {name: (tensor(3.0 * n + 5, 4, 4), tensor(times * (n + 2), 2, 4)) for n, name in enumerate("ab")}
    calls = []
    for number, name in enumerate(order * passes):
        weight, made = values[name]
        calls.append(call(f"{dense}.{number}.forward", [X, weight], [made]))
        after = made._replace(stats=Statistics(*(3 * x for x in made.stats[:4])))  # type: ignore[index]
        calls.append(call(f"{exp}.{number}.forward", [made], [after]))
    return recording(framework, *calls)


@pytest.mark.parametrize("times", [1.0, 7.0])
def test_branches_in_another_order_are_told_by_weights_and_by_what_they_use(times: float) -> None:
    """Whether the values still agree, or are quite others on the other side."""
    pairs = found(branches("mindspore", "ab", times), branches("pytorch", "ba", 1.0))
    assert pairs == {
        "Functional.dense.0.forward": "Functional.linear.1.forward",
        "Functional.dense.1.forward": "Functional.linear.0.forward",
        "Mint.exp.0.forward": "Torch.exp.1.forward",
        "Mint.exp.1.forward": "Torch.exp.0.forward",
    }


@pytest.mark.parametrize("times", [1.0, 7.0])
def test_a_net_that_runs_twice_on_the_same_data_is_paired_in_order(times: float) -> None:
    pairs = found(branches("mindspore", "ab", times, passes=2), branches("pytorch", "ba", 1.0, passes=2))
    assert pairs == {
        f"{ours}.{n}.forward": f"{theirs}.{other}.forward"
        for ours, theirs in (("Functional.dense", "Functional.linear"), ("Mint.exp", "Torch.exp"))
        for n, other in ((0, 1), (1, 0), (2, 3), (3, 2))
    }


@pytest.mark.parametrize(("passes", "more"), [(2, 1), (1, 2)])
def test_weights_pair_the_first_runs_of_a_net_that_runs_once_more_on_one_side(passes: int, more: int) -> None:
    pairs = found(
        branches("mindspore", "ab", 7.0, passes=passes), branches("pytorch", "ba", 1.0, passes=more)
    )
    assert {a: b for a, b in pairs.items() if "dense" in a} == {
        "Functional.dense.0.forward": "Functional.linear.1.forward",
        "Functional.dense.1.forward": "Functional.linear.0.forward",
    }


def nested(framework: str, order: str, times: float) -> Recording:
    """Two blocks, each with a layer that has a weight and its product, that run twice on the same data."""
    prefix, kind, api = {
        "mindspore": ("Cell", "Dense", "Functional.dense"),
        "pytorch": ("Module", "Linear", "Functional.linear"),
    }[framework]
    values = {name: (tensor(3.0 * n + 5, 4, 4), tensor(times * (n + 2), 2, 4)) for n, name in enumerate("ab")}
    calls = []
    for number, name in enumerate(order * 2):
        (weight, made), time = values[name], number // 2
        block, layer = f"{prefix}.{name}.Block.forward.{time}", f"{prefix}.{name}.fc.{kind}.forward.{time}"
        calls.append(call(f"{api}.{number}.forward", [X, weight], [made], layer))
        calls += [call(layer, [X], [made], block, weight=weight), call(block, [X], [made])]
    return recording(framework, *calls)


@pytest.mark.parametrize("times", [1.0, 7.0])
def test_modules_that_run_twice_on_the_same_data_are_paired_in_order(times: float) -> None:
    pairs = found(nested("mindspore", "ab", times), nested("pytorch", "ba", 1.0))
    expected = {f"Functional.dense.{n}.forward": f"Functional.linear.{n ^ 1}.forward" for n in range(4)}
    for name, time in ((name, time) for name in "ab" for time in (0, 1)):
        expected[f"Cell.{name}.Block.forward.{time}"] = f"Module.{name}.Block.forward.{time}"
        expected[f"Cell.{name}.fc.Dense.forward.{time}"] = f"Module.{name}.fc.Linear.forward.{time}"
    assert pairs == expected


def dense_run(
    framework: str, *, shape: tuple[int, ...] = (2, 4), bias: bool = True, weight: float = 5.0
) -> Recording:
    """One Dense, as each framework does it; its values are those of the other run if `weight` is."""
    w, b, y = tensor(weight, 4, 4), tensor(0.5, 4), tensor(weight + 1, *shape)
    x = tensor(1.0, *shape)
    if framework == "pytorch":
        return recording(framework, call("Functional.linear.0.forward", [x, w, b] if bias else [x, w], [y]))
    flat, product = (2 * math.prod(shape) // 8, 4), tensor(weight + 0.5, 2 * math.prod(shape) // 8, 4)
    calls = [
        call(
            "Primitive.matmul.MatMul.0.forward",
            [x._replace(shape=flat), w],
            [product if bias else y._replace(shape=flat)],
        )
    ]
    if bias:
        calls.append(call("Primitive.bias_add.BiasAdd.0.forward", [product, b], [y._replace(shape=flat)]))
    if len(shape) > 2:
        calls.insert(0, call("Primitive.reshape.Reshape.0.forward", [x], [x._replace(shape=flat)]))
        calls.append(call("Primitive.reshape.Reshape.1.forward", [y._replace(shape=flat)], [y]))
    return recording(framework, *calls)


LINEAR = "Functional.linear.0.forward"
MATMUL, ADD = "Primitive.matmul.MatMul.0.forward", "Primitive.bias_add.BiasAdd.0.forward"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {},
            {
                f"{MATMUL}.input.0": f"{LINEAR}.input.0",
                f"{MATMUL}.input.1": f"{LINEAR}.input.1",
                f"{ADD}.input.1": f"{LINEAR}.input.2",
                f"{ADD}.output.0": f"{LINEAR}.output.0",
            },
        ),
        (
            {"bias": False},
            {
                f"{MATMUL}.input.0": f"{LINEAR}.input.0",
                f"{MATMUL}.input.1": f"{LINEAR}.input.1",
                f"{MATMUL}.output.0": f"{LINEAR}.output.0",
            },
        ),
        (
            {"shape": (2, 2, 4)},
            {
                "Primitive.reshape.Reshape.0.forward.input.0": f"{LINEAR}.input.0",
                f"{MATMUL}.input.1": f"{LINEAR}.input.1",
                f"{ADD}.input.1": f"{LINEAR}.input.2",
                "Primitive.reshape.Reshape.1.forward.output.0": f"{LINEAR}.output.0",
            },
        ),
    ],
)
def test_several_calls_are_paired_with_one_by_their_places(
    keys: dict[str, Any], expected: dict[str, str]
) -> None:
    ours, theirs = dense_run("mindspore", **keys), dense_run("pytorch", **keys)
    assert dict(align(ours, theirs).names) == expected
    assert dict(align(theirs, ours).names) == {b: a for a, b in expected.items()}


@pytest.mark.parametrize("module", ["Module.fc.Linear.forward.0", ""])
def test_several_calls_lie_in_the_modules_that_belong_together(module: str) -> None:
    """A Dense beside a module of PyTorch, or beside a plain call; and not beside a call of another module."""
    ours = recording(
        "mindspore", *(inside(record, "Cell.fc.Dense.forward.0") for record in calls_of("mindspore"))
    )
    w, b = tensor(5.0, 4, 4), tensor(0.5, 4)
    around = [] if not module else [call(module, [tensor(1.0, 2, 4)], [tensor(6.0, 2, 4)], weight=w, bias=b)]
    ours = with_module(
        ours, call("Cell.fc.Dense.forward.0", [tensor(1.0, 2, 4)], [tensor(6.0, 2, 4)], weight=w, bias=b)
    )
    theirs = recording(
        "pytorch", *(inside(record, module or None) for record in calls_of("pytorch")), *around
    )
    assert align(ours, theirs).names[f"{ADD}.output.0"] == f"{LINEAR}.output.0"


def calls_of(framework: str) -> list[Record]:
    return list(dense_run(framework).records.values())


def inside(record: Record, module: str | None) -> Record:
    return record._replace(parent=module)


def with_module(run: Recording, module: Record) -> Recording:
    return recording(run.header.framework, *run.records.values(), module)


def test_several_calls_with_other_weights_are_less_sure() -> None:
    rename = align(dense_run("mindspore", weight=9.0), dense_run("pytorch"))
    assert {certainty.share for certainty in rename.sure.values()} == {0.8}
    same = align(dense_run("mindspore"), dense_run("pytorch"))
    assert {certainty.share for certainty in same.sure.values()} == {0.95}


def test_several_calls_with_a_bias_are_not_one_without() -> None:
    assert align(dense_run("mindspore"), dense_run("pytorch", bias=False)).names == {}


def test_a_convolution_is_not_paired_with_one_that_adds_a_bias() -> None:
    """Its result is another; only with the call that adds the bias they are the same."""
    x, w, b, y = tensor(1.0, 1, 2, 4, 4), tensor(2.0, 2, 2, 3, 3), tensor(0.5, 2), tensor(3.0, 1, 2, 4, 4)
    ours = recording("mindspore", call("Primitive.conv2d.Conv2D.0.forward", [x, w], [y]))
    theirs = recording("pytorch", call("Functional.conv2d.0.forward", [x, w, b], [tensor(3.5, 1, 2, 4, 4)]))
    assert align(ours, theirs).names == {}
    without = recording("pytorch", call("Functional.conv2d.0.forward", [x, w], [y]))
    assert found(ours, without) == {"Primitive.conv2d.Conv2D.0.forward": "Functional.conv2d.0.forward"}


def test_a_layer_of_one_side_is_a_call_on_the_other() -> None:
    target = recording(
        "mindspore",
        call("Primitive.relu.ReLU.0.forward", [X], [Y], "Cell.act.ReLU.forward.0"),
        call("Cell.act.ReLU.forward.0", [X], [Y]),
    )
    golden = recording("pytorch", call("Functional.relu.0.forward", [X], [Y]))
    assert found(target, golden) == {"Primitive.relu.ReLU.0.forward": "Functional.relu.0.forward"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("Functional.relu.0.forward", "Functional.gelu.0.forward"),
        ("Cell.a.Dense.forward.0", "Module.a.LayerNorm.forward.0"),
        ("Cell.relu.ReLU.forward.0", "Functional.relu.0.forward"),
    ],
)
def test_calls_that_do_different_things_are_not_paired(ours: str, theirs: str) -> None:
    assert (
        found(recording("mindspore", call(ours, [X], [Y])), recording("pytorch", call(theirs, [X], [Y])))
        == {}
    )


def test_plain_arguments_are_paired_only_where_that_is_certain() -> None:
    def run(framework: str, name: str, *positions: int, **keywords: int) -> Recording:
        made = call(name, [X], [Y])
        made.fields["input_args"] += [Leaf("int", value) for value in positions]
        made.fields["input_kwargs"] |= {key: Leaf("int", value) for key, value in keywords.items()}
        return recording(framework, made)

    ours = run("mindspore", "Functional.transpose.0.forward", 1, 0, axis=1)
    theirs = run("pytorch", "Tensor.transpose.0.forward", 0, 0, dim=2)
    pairs = match(ours, theirs, rename=align(ours, theirs))
    name = "Functional.transpose.0.forward.input."
    got = {p.target.name: p.golden and p.golden.name for p in pairs if p.target and name in p.target.name}
    other = "Tensor.transpose.0.forward.input."
    assert got == {
        f"{name}0": f"{other}0",
        f"{name}1": None,
        f"{name}2": f"{other}2",
        f"{name}axis": f"{other}dim",
    }


def test_saved_variables_are_paired_by_name() -> None:
    def run(framework: str) -> Recording:
        record = Record(CallName("loss", "debug", 0), {"value": X})
        return Recording(Header("statistics", "debug", framework), {"loss.0.debug": record}, framework)

    assert align(run("mindspore"), run("pytorch")).names == {"loss.0.debug": "loss.0.debug"}


def test_nothing_is_aligned_with_nothing() -> None:
    empty = recording("pytorch")
    rename = align(recording("mindspore", call("Mint.add.0.forward", [X], [Y])), empty)
    assert rename.names == {}
    (pair, *_) = match(recording("mindspore", call("Mint.add.0.forward", [X], [Y])), empty, rename=rename)
    assert pair.reason == "no call of the golden run looks like it"


@pytest.mark.parametrize("count", [1, 2, 300])
def test_a_recording_whose_modules_lie_in_each_other_is_survived(count: int) -> None:
    """In a ring, or deeper than any model is."""

    def run(framework: str, prefix: str, last: str | None) -> Recording:
        names = [f"{prefix}.m{number}.Net.forward.0" for number in range(count)]
        around = [*names[1:], names[0] if last is not None else None]
        return recording(framework, *(call(a, [X], [Y], b) for a, b in zip(names, around, strict=True)))

    for last in ("ring", None):
        pairs = found(run("mindspore", "Cell", last), run("pytorch", "Module", last))
        assert len(pairs) >= min(count, 2)


def test_recordings_of_any_content_are_aligned_without_a_failure() -> None:
    chance = random.Random(5)
    values = (0.0, 1.0, math.nan, math.inf, -math.inf, 1e-30, 1e30)

    def any_leaf() -> Leaf | None:
        shape = tuple(chance.choices((0, 1, 2, 4), k=chance.randint(0, 3)))
        most, least, mean, norm = (chance.choice((*values, None)) for _ in range(4))
        stats = Statistics(most, least, mean, norm)
        kinds = (
            None,
            Leaf("int", chance.randint(0, 3)),
            Leaf("T", dtype="Bool", shape=shape, stats=Statistics(True, False, None, None)),
            Leaf("T", dtype="Float32", shape=shape, stats=stats),
            Leaf("T", dtype="Float32", shape=shape),
        )
        return chance.choice(kinds)

    def run(framework: str, words: Sequence[str]) -> Recording:
        names = [f"{chance.choice(words)}.{chance.randint(0, 3)}" for _ in range(30)]
        texts = [n if n.startswith(("Cell", "Module")) else f"{n}.forward" for n in names]
        made = []
        for text in texts:
            inputs, outputs = ([any_leaf() for _ in range(chance.randint(0, 3))] for _ in range(2))
            made.append(call(text, inputs, outputs, chance.choice([None, *texts])))
        return recording(framework, *made)

    ours = ("Cell.a.Dense.forward", "Cell.a.b.Net.forward", "Mint.add", "Functional.batch_norm", "Tensor.to")
    theirs = ("Module.a.Linear.forward", "Module.a.b.Net.forward", "Torch.add", "Functional.batch_norm")
    for _ in range(100):
        target, golden = run("mindspore", ours), run("pytorch", theirs)
        rename = align(target, golden)
        assert rename.names.keys() <= target.records.keys()
        assert set(rename.names.values()) <= golden.records.keys()
        assert len(set(rename.names.values())) == len(rename.names)
        match(target, golden, rename=rename)


# ---- the heaviest chain ----


@pytest.mark.parametrize(
    ("matches", "chain"),
    [
        ([], []),
        ([(0, 0, 1.0), (1, 1, 1.0)], [(0, 0), (1, 1)]),
        ([(0, 1, 1.0), (1, 0, 3.0)], [(1, 0)]),
        ([(0, 0, 1.0), (0, 2, 5.0), (1, 1, 2.0), (2, 2, 2.5)], [(0, 0), (1, 1), (2, 2)]),
        ([(0, 0, 1.0), (0, 1, 1.0), (1, 1, 1.0)], [(0, 0), (1, 1)]),
    ],
)
def test_the_heaviest_pairs_that_do_not_cross(
    matches: list[tuple[int, int, float]], chain: list[tuple[int, int]]
) -> None:
    given = [Candidate(a, b, Likeness(weight, Certainty(1.0, ""))) for a, b, weight in matches]
    assert [(match.ours, match.theirs) for match in heaviest(given, 4)] == chain
