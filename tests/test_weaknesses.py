"""What the existing tool does wrong while it records, by the numbers of known weaknesses; ours does not."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import matmul as matmul_bound_early  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.functional import linear as linear_bound_early  # noqa: E402
from torch.nn.functional import relu as relu_bound_early  # noqa: E402

from msprobe.config import Config, Statistics  # noqa: E402
from msprobe.pytorch.debugger import TorchDebugger  # noqa: E402
from test_recorder import brief  # noqa: E402


class Session:
    """Debuggers with a folder each, all closed in the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[TorchDebugger] = []

    def made(self, name: str = "run", level: str = "L1", **keys: Any) -> TorchDebugger:
        common = {key: keys.pop(key) for key in ("rank", "rm_dropout") if key in keys}
        config = Config(
            dump_path=str(self._folder / name),
            level=level,
            section=Statistics(**keys),
            **{"rm_dropout": False, **common},
        )
        self._made.append(TorchDebugger(config, None))
        return self._made[-1]

    def data(self, name: str = "run", file: str = "dump.json") -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self._folder / name / f"step0/rank/{file}").read_bytes())["data"]
        return data

    def close(self) -> None:
        while self._made:
            self._made.pop().close()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path)
    yield session
    session.close()


class Net(nn.Module):
    """A linear layer whose result an activation overwrites, and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act, self.norm = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.drop(self.norm(self.act(self.fc(x))))


def trained(debugger: TorchDebugger | None) -> float:
    """The loss of one step."""
    torch.manual_seed(3)
    net = Net()
    x = torch.randn(6, 4)
    if debugger is not None:
        debugger.start(net)
    loss = net(x).pow(2).mean()
    loss.backward()
    if debugger is not None:
        debugger.stop()
        debugger.step()
    return float(loss)


# --- 1: errors in user code, records of its own calls, dropout that depends on the level ---


@pytest.mark.parametrize("started", [False, True])
def test_1_in_place_indexing_under_no_grad(session: Session, started: bool) -> None:
    debugger = session.made()
    weight = nn.Parameter(torch.zeros(2, 2))
    if started:
        debugger.start()
    with torch.no_grad():
        weight[0, 0] += 1.0
    assert weight.tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_1_no_call_of_ours_is_recorded(session: Session) -> None:
    debugger = session.made(level="mix")
    trained(debugger)
    calls = {name for name in session.data() if name.endswith(".forward")}
    assert calls == {
        "Functional.linear.0.forward",
        "Functional.relu.0.forward",
        "Tensor.add_.0.forward",  # of BatchNorm, which counts its batches
        "Functional.batch_norm.0.forward",
        "Functional.dropout.0.forward",
        "Tensor.pow.0.forward",
        "Tensor.mean.0.forward",
        "Torch.ones_like.0.forward",  # of Tensor.backward
    }


def test_1_dropout_does_not_depend_on_the_level(session: Session) -> None:
    plain = trained(None)
    losses = {level: trained(session.made(level, level)) for level in ("L0", "L1", "mix")}
    assert losses == dict.fromkeys(("L0", "L1", "mix"), plain)


# --- 2: an exception that the user catches ---


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_2_calls_after_a_caught_exception_are_recorded(session: Session, level: str) -> None:
    debugger = session.made(level=level)
    net = nn.ModuleList([nn.Linear(2, 2)])
    debugger.start(net)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        net[0](torch.ones(3, 3))
    with pytest.raises(RuntimeError):
        torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
    torch.relu(torch.exp(torch.ones(2)) * 2)
    debugger.step()
    data = session.data()
    assert [name for name in data if name.endswith("forward")] == [
        "Functional.linear.0.forward",
        "Torch.matmul.0.forward",
        "Torch.exp.0.forward",
        "Tensor.__mul__.0.forward",
        "Torch.relu.0.forward",
    ]
    assert data["Torch.matmul.0.forward"]["exception"].startswith("RuntimeError: ")
    assert [leaf["shape"] for leaf in data["Torch.matmul.0.forward"]["input_args"]] == [[2, 3], [2, 3]]


# --- 3: checksums of memory that changes meanwhile ---


def test_3_checksums_are_of_the_moment_of_the_call(session: Session) -> None:
    debugger = session.made(summary_mode="md5")
    x = torch.arange(4096.0) - 2048
    moments = []
    debugger.start()
    for _ in range(20):
        moments.append(x.clone())
        F.relu_(x)
        x.sub_(7.0)
    debugger.step()

    def crc(tensor: Any) -> str:
        return f"{zlib.crc32(bytes(tensor.contiguous().view(torch.uint8).tolist())):08x}"

    data = session.data()
    seen = [data[f"Functional.relu_.{n}.forward"]["input_args"][0]["md5"] for n in range(20)]
    assert seen == [crc(moment) for moment in moments]
    after = [data[f"Functional.relu_.{n}.forward"]["output"][0]["md5"] for n in range(20)]
    assert after == [crc(moment.relu()) for moment in moments]


def test_3_two_equal_runs_have_equal_checksums(session: Session) -> None:
    for name in ("a", "b"):
        trained(session.made(name, level="mix", summary_mode="md5"))
    assert session.data("a") == session.data("b")


# --- 4: an in-place call takes away the backward of its neighbours ---


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_4_in_place_calls_and_their_neighbours_have_a_backward(session: Session, level: str) -> None:
    trained(session.made(level=level))
    data = session.data()
    modules = ["fc.Linear", "act.ReLU", "norm.BatchNorm1d", "drop.Dropout"]
    assert [name for name in modules if f"Module.{name}.backward.0" in data] == modules
    act = data["Module.act.ReLU.forward.0"]
    assert act["input_args"][0]["Min"] < 0 and act["output"][0]["Min"] == 0
    (given,), (made,) = act["input_args"], data["Module.fc.Linear.forward.0"]["output"]
    maker = made.get("from", "Module.fc.Linear.forward.0.output.0")  # at level mix the call in it
    assert given == {**made, "from": maker}
    if level == "mix":
        assert "Functional.linear.0.backward" in data


def test_4_a_module_whose_output_is_nested_has_a_backward(session: Session) -> None:
    class Nested(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"deep": [x * 2, None]}

    model = nn.ModuleList([Nested()])
    debugger = session.made(level="L0")
    x = torch.ones(2, requires_grad=True)
    debugger.start(model)
    model[0](x)["deep"][0].sum().backward()
    debugger.step()
    assert brief(session.data()["Module.0.Nested.backward.0"]) == {"input": [1.0], "output": [2.0]}


# --- 5: the last call of a scope without its output ---


@pytest.mark.parametrize(
    ("level", "last"), [("L1", "Functional.relu.0.forward"), ("mix", "Module.fc.Linear.forward.0")]
)
def test_5_the_last_call_of_a_scope_has_its_output(session: Session, level: str, last: str) -> None:
    debugger = session.made(level=level, scope=("Functional.linear.0.forward", last))
    net = nn.ModuleDict({"fc": nn.Linear(2, 2)})
    debugger.start(net)
    torch.exp(F.relu(net["fc"](torch.ones(1, 2))))
    debugger.step()
    data = session.data()
    assert [leaf["shape"] for leaf in data[last]["output"]] == [[1, 2]]
    assert "Torch.exp.0.forward" not in data


# --- 13: results of batch_isend_irecv before they are there: test_distributed.py, with two processes ---

# --- 14: functions whose names were bound before ---


def test_14_names_bound_early_are_recorded_under_their_own(session: Session) -> None:
    debugger = session.made()
    debugger.start()
    linear_bound_early(matmul_bound_early(torch.ones(2, 2), torch.ones(2, 2)), torch.ones(2, 2))
    relu_bound_early(torch.ones(2))
    assert F.relu is relu_bound_early and torch.matmul is matmul_bound_early
    debugger.step()
    assert list(session.data()) == [
        "Torch.matmul.0.forward",
        "Functional.linear.0.forward",
        "Functional.relu.0.forward",
    ]


# --- 16: statistics and arguments that lose what they show ---


def test_16_large_numbers_stay_what_they_are(session: Session) -> None:
    debugger = session.made()
    debugger.start()
    torch.neg(torch.tensor([1e300, -1e-300], dtype=torch.float64))
    torch.neg(torch.tensor([2**60, 2**60 + 1]))
    torch.neg(torch.tensor([0.1, 0.25], dtype=torch.bfloat16))
    debugger.step()
    (wide,), (whole,), (half,) = (fields["input_args"] for fields in session.data().values())
    assert (wide["Max"], wide["Min"], wide["Norm"]) == (1e300, -1e-300, 1e300)
    assert (whole["Max"], whole["Min"]) == (2**60 + 1, 2**60)
    assert half["Mean"] == pytest.approx((0.10009765625 + 0.25) / 2, rel=1e-6)


def test_16_a_dtype_or_device_by_place_is_shown(session: Session) -> None:
    debugger = session.made()
    debugger.start()
    torch.ones(2).to(torch.float64).to(torch.device("cpu"))
    debugger.step()
    arguments = [fields["input_args"][1] for fields in session.data().values()]
    assert arguments == [
        {"type": "torch.dtype", "value": "torch.float64"},
        {"type": "torch.device", "value": "cpu"},
    ]


# --- 17: silence ---


@pytest.mark.parametrize("rank", [(0,), (1,)])
def test_17_a_rank_filter_in_one_process(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str], rank: tuple[int, ...]
) -> None:
    debugger = session.made(rank=rank)
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.step()
    said = "this process is rank 0 (not distributed): nothing is recorded here" in capsys.readouterr().err
    assert ((tmp_path / "run").exists(), said) == ((True, False) if 0 in rank else (False, True))


def test_17_a_variable_with_none_inside_is_saved(session: Session) -> None:
    debugger = session.made(level="debug")
    debugger.save({"a": None, "b": [torch.ones(2), None]}, "v", save_backward=False)
    debugger.step()
    assert brief(session.data(file="debug.json")["v.0.debug"]) == {"a": None, "b": [1.0, None]}


@pytest.mark.parametrize("name", ["with a space", "mit_Ümlaut", "数据"])
def test_17_a_dump_path_may_have_any_signs(session: Session, name: str) -> None:
    debugger = session.made(name)
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.step()
    assert list(session.data(name)) == ["Torch.relu.0.forward"]
