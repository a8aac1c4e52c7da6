"""A record may come from anybody: of torch only what msprobe records is ever called by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from msprobe.name import CallName
from msprobe.precheck.calls import Call, Skip
from msprobe.precheck.work import Setup, check
from msprobe.record import Header, Leaf, Record, Recording

pytest.importorskip("torch")
from msprobe.pytorch import apis
from msprobe.pytorch.worker import CheckedTorch

# What reads, writes or runs something, keeps a state of the process, or is no function at all.
HOSTILE = [
    *("Torch.load", "Torch.save", "Torch.from_file", "Torch.hub.load", "Torch.jit.load", "Torch.compile"),
    *("Torch.ops.load_library", "Torch.classes.load_library", "Torch.package.PackageImporter"),
    *(
        "Torch.utils.cpp_extension.load_inline",
        "Torch.serialization.load",
        "Torch.os.system",
        "Torch.sys.exit",
    ),
    *("Torch.set_default_dtype", "Torch.set_num_threads", "Torch.manual_seed", "Torch.frombuffer", "Torch"),
    *("Tensor.tofile", "Tensor.apply_", "Tensor.share_memory_", "Tensor.set_", "Tensor.data_ptr"),
    *("Tensor.__reduce_ex__", "Tensor.__setstate__", "Tensor.__class__", "Tensor.__getattribute__"),
    *("Functional.boolean_dispatch", "Functional.importlib.import_module", "Functional.__class__"),
    *("Functional.linear.__globals__", "Functional.__builtins__", "Functional.linear.__call__"),
    *("Aten.from_file", "Aten.__name__", "Aten.__spec__", "Aten.__class__", "VF.__class__"),
    *("Distributed.all_reduce", "Custom.load", "NPU.__class__", "MindSpeed.os.system", "os.system", ".load"),
]


@pytest.mark.parametrize("owner", HOSTILE)
def test_nothing_else_is_called(owner: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    name = CallName(owner, "forward", 0)
    record = Record(name, {"input_args": [Leaf("str", str(file))], "input_kwargs": {}, "output": []})
    setup = Setup(Recording(Header("", "", ""), {}, str(tmp_path)), "cpu")
    answer = check(Call(name, record), setup, CheckedTorch())
    assert (answer.summed.forward, answer.summed.message) == ("SKIP", Skip.UNKNOWN.of())
    assert list(tmp_path.iterdir()) == []


def test_only_listed_functions_are_called() -> None:
    listed = {
        f"{prefix}.{name}"
        for section, names in apis.read_list(apis.SUPPORT_LIST).items()
        for prefix in ({"_VF": "VF", "aten": "Aten"}.get(section, section.capitalize()),)
        for name in names
    }
    assert apis.by_owner().keys() <= listed
    assert not listed & set(HOSTILE) - {"Aten.__name__", "Aten.__spec__", "Distributed.all_reduce"}
