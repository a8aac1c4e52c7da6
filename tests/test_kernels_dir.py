"""The folders of a kernel dump: whose data a file is."""

from pathlib import Path
from typing import Any

import pytest

from msprobe.errors import RecordingError
from msprobe.store.kernels_dir import KernelFile, kernel_file, kernel_files


@pytest.mark.spec("C125", "PT")
@pytest.mark.spec("C126", "PT")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "20230131172437/1/0/Add.Add.45.0.1675157077183551",
            ("20230131172437", 1, 0, "Add", "Add", 45, 0, 1675157077183551),
        ),
        (
            "dump/output/20240229000000/0/4294967295/MatMulV2.Default_net.fc_MatMul-op1.1.31.7",
            ("20240229000000", 0, 4294967295, "MatMulV2", "Default_net.fc_MatMul-op1", 1, 31, 7),
        ),
    ],
)
def test_what_a_path_says(path: str, expected: tuple[Any, ...]) -> None:
    assert kernel_file(Path(path)) == KernelFile(*expected, path=Path(path))


@pytest.mark.parametrize(
    "path",
    [
        "Add.Add.45.0.1675157077183551",
        "1/0/Add.Add.45.0.1675157077183551",
        "2023/1/0/Add.Add.45.0.1675157077183551",
        "20230131172437/one/0/Add.Add.45.0.1675157077183551",
        "20230131172437/1/0/Add.45.0.1675157077183551",
        "20230131172437/1/0/Add.Add.45.0.1675157077183551.npy",
        "20230131172437/1/0/Add.Add.45.0.-1",
        "20230131172437/1/0/.Add.45.0.1",
    ],
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(RecordingError, match="is no file of a kernel dump; expected a path such as"):
        kernel_file(Path(path))


@pytest.mark.spec("C125", "PT")
def test_files_below_a_folder(tmp_path: Path) -> None:
    names = [
        "20230131172437/1/0/Mul.m.2.0.30",
        "20230131172437/1/0/Add.a.1.0.20",
        "20230131172437/0/0/Add.a.1.0.99",
        "20230131172436/7/2/Relu.r.1.0.90",
    ]
    others = ["20230131172437/1/0/mapping.csv", "20230131172437/1/0/deeper/Add.a.1.0.1", "hash.txt"]
    for name in names + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "20230131172438").symlink_to(tmp_path / "20230131172437")
    found = [str(file.path.relative_to(tmp_path)) for file in kernel_files(tmp_path)]
    assert found == [names[3], names[2], names[1], names[0]]
