"""The keys of config.json: what each may hold, its default, and the line that an editor shows for it."""

import ipaddress
import re
from collections.abc import Iterable
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

MOST_NUMBER = 1_000_000
_RANGE = re.compile(r"\s*([0-9]{1,9})\s*-\s*([0-9]{1,9})\s*")
DEFAULT_SEED = 1234

Task: TypeAlias = Literal["statistics", "tensor", "overflow_check", "free_benchmark", "run_ut"]
Level: TypeAlias = Literal["L0", "L1", "L2", "mix", "debug"]
DataMode: TypeAlias = Literal["all", "forward", "backward", "input", "output"]


class Framework(str, Enum):
    PYTORCH = "pytorch"
    MINDSPORE = "mindspore"


class Scene(str, Enum):
    """Where a configuration is used; the value is the words for it in messages."""

    PYTORCH = "PyTorch"
    MINDSPORE_DYNAMIC = "a MindSpore dynamic graph"
    MINDSPORE_STATIC = "a MindSpore static graph"
    MSADAPTER = "MSAdapter"

    @property
    def framework(self) -> Framework:
        return Framework.PYTORCH if self is Scene.PYTORCH else Framework.MINDSPORE


def _wrong(message: str, index: int | None = None) -> PydanticCustomError:
    """The end of the sentence '"key" is value, but ...'; with an index it speaks of that element."""
    return PydanticCustomError("wrong", "{message}", {"message": message, "index": index})


def _numbers(given: object) -> tuple[int, ...]:
    if not isinstance(given, (list, tuple, range)):
        raise _wrong('it must be a list of integers and ranges, such as [0, 2] or ["3-5"]')
    found: set[int] = set()
    for index, element in enumerate(given):
        found.update(_span(element, index))
    return tuple(sorted(found))


def _span(element: object, index: int) -> Iterable[int]:
    if isinstance(element, int) and not isinstance(element, bool):
        first = last = element
    elif isinstance(element, str) and (ends := _RANGE.fullmatch(element)):
        first, last = int(ends[1]), int(ends[2])
    else:
        raise _wrong('it must be an integer or an inclusive range such as "3-5"', index)
    if not 0 <= first <= MOST_NUMBER or not 0 <= last <= MOST_NUMBER:
        raise _wrong(f"it must lie between 0 and {MOST_NUMBER}", index)
    if first > last:
        raise _wrong(f'a range begins with its smaller end: "{last}-{first}"', index)
    return range(first, last + 1)


def _ranks(found: tuple[int, ...]) -> tuple[int, ...]:
    if not found:
        raise _wrong("it must name at least one rank")
    return found


def _as_list(given: object) -> object:
    return [given] if isinstance(given, str) else given


def _data_modes(found: tuple[DataMode, ...]) -> tuple[DataMode, ...]:
    if "all" in found and len(set(found)) > 1:
        raise _wrong('"all" must stand alone')
    return tuple(dict.fromkeys(found)) or ("all",)


def _without_empty(found: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in found if path)


def _overflow_count(count: int) -> int:
    if not (count == -1 or count >= 1):
        raise _wrong("it must be at least 1, or -1 to check until training ends")
    return count


def _ipv4(host: str) -> str:
    try:
        return str(ipaddress.IPv4Address(host)) if host else host
    except ValueError:
        raise _wrong('it must be an IPv4 address such as "192.168.1.10"') from None


_NUMBERS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": MOST_NUMBER},
            {"type": "string", "pattern": r"^\s*[0-9]+\s*-\s*[0-9]+\s*$"},
        ]
    },
}
_DATA_MODE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": list(get_args(DataMode))},
        {"type": "array", "items": {"enum": list(get_args(DataMode))}},
    ],
}
_BACKWARD_INPUT_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}

Name: TypeAlias = Annotated[StrictStr, Field(min_length=1)]
Names: TypeAlias = tuple[Name, ...]
Numbers: TypeAlias = Annotated[tuple[int, ...], BeforeValidator(_numbers), WithJsonSchema(_NUMBERS_SCHEMA)]
Ranks: TypeAlias = Annotated[
    tuple[int, ...],
    BeforeValidator(_numbers),
    AfterValidator(_ranks),
    WithJsonSchema({**_NUMBERS_SCHEMA, "minItems": 1}),
]
DataModes: TypeAlias = Annotated[
    tuple[DataMode, ...],
    BeforeValidator(_as_list),
    AfterValidator(_data_modes),
    WithJsonSchema(_DATA_MODE_SCHEMA),
]
Paths: TypeAlias = Annotated[
    tuple[StrictStr, ...],
    BeforeValidator(_as_list),
    AfterValidator(_without_empty),
    WithJsonSchema(_BACKWARD_INPUT_SCHEMA),
]
Host: TypeAlias = Annotated[StrictStr, AfterValidator(_ipv4)]
Port: TypeAlias = Annotated[StrictInt, Field(ge=1, le=65535)]
Count: TypeAlias = Annotated[StrictInt, Field(ge=1)]
Seed: TypeAlias = Annotated[StrictInt, Field(ge=0, le=2**32 - 1)]  # what numpy takes
OverflowCount: TypeAlias = Annotated[
    StrictInt,
    AfterValidator(_overflow_count),
    Field(json_schema_extra={"anyOf": [{"const": -1}, {"minimum": 1}]}),
]
Precision: TypeAlias = Literal["low", "high"]


def _say(description: str) -> Any:
    return Field(description=description)


_SCOPE = _say("Two names, the first and the last call to record, both included; [] = no interval.")
_LIST = _say(
    "Names or parts of names; only calls whose name contains one of them are recorded; [] = all. "
    "MindSpore static graph: kernel names or name-regex(...)."
)
_DATA_MODE = _say(
    'Which data of a call to keep; "all" stands alone. MindSpore static graph: one of all, input, output.'
)
_NFS_PATH = _say("Online pre-check: a shared folder for the exchange; host and port then do not apply.")
_TLS_PATH = _say('Online pre-check over TCP: folder with keys and certificates; "" = no encryption.')
_PRECISION = _say("Accepted and ignored: statistics are always accumulated in float32 or more.")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Statistics(_Frozen):
    """Task statistics: record statistics of every tensor."""

    scope: Annotated[Names, _SCOPE] = ()
    list: Annotated[Names, _LIST] = ()
    data_mode: Annotated[DataModes, _DATA_MODE] = ("all",)
    summary_mode: Annotated[
        Literal["statistics", "md5", "sketch"],
        _say("statistics; md5 = and a checksum (CRC-32); sketch = and a compact sketch."),
    ] = "statistics"
    tensor_list: Annotated[Names, _say("Names or parts of names whose tensors are saved as well.")] = ()
    precision: Annotated[Precision, _PRECISION] = "high"


class Tensor(_Frozen):
    """Task tensor: record statistics and save every tensor."""

    scope: Annotated[Names, _say("As in statistics. PyTorch L2: exactly one API.")] = ()
    list: Annotated[Names, _LIST] = ()
    data_mode: Annotated[DataModes, _DATA_MODE] = ("all",)
    backward_input: Annotated[
        Paths, _say("PyTorch L2, backward API: .pt files of its backward inputs from an earlier recording.")
    ] = ()
    file_format: Annotated[Literal["npy", "bin"], _say("MindSpore static graph: format of tensor files.")] = (
        "npy"
    )
    online_run_ut: Annotated[StrictBool, _say("PyTorch: online pre-check, the side that trains.")] = False
    nfs_path: Annotated[StrictStr, _NFS_PATH] = ""
    host: Annotated[Host, _say("Online pre-check: IPv4 address of the checking machine.")] = ""
    port: Annotated[Port | None, _say("Online pre-check: port of the checking machine.")] = None
    tls_path: Annotated[StrictStr, _TLS_PATH] = ""


class OverflowCheck(_Frozen):
    """Task overflow_check: find calls that overflow."""

    overflow_nums: Annotated[
        OverflowCount,
        _say("Training stops at this overflow; -1 = never. PyTorch and MindSpore dynamic graph."),
    ] = 1
    check_mode: Annotated[
        Literal["all", "aicore", "atomic"], _say("MindSpore static graph: which overflows are looked for.")
    ] = "all"


class FreeBenchmark(_Frozen):
    """Task free_benchmark: run calls a second time with perturbed inputs and compare."""

    scope: Annotated[
        Names, _say("PyTorch: names of the APIs to check, without direction; not together with list.")
    ] = ()
    list: Annotated[Names, _say("PyTorch: parts of API names; MindSpore: full API names; [] = all.")] = ()
    fuzz_device: Annotated[
        Literal["npu", "cpu"], _say("npu = the device that trains; cpu (PyTorch) = with pert_mode to_cpu.")
    ] = "npu"
    pert_mode: Annotated[
        Literal["improve_precision", "add_noise", "no_change", "bit_noise", "change_value", "to_cpu"],
        _say("How the input is perturbed; to_cpu: PyTorch only, with fuzz_device cpu."),
    ] = "improve_precision"
    handler_type: Annotated[
        Literal["check", "fix"], _say("check = report; fix = the perturbed output replaces the original one.")
    ] = "check"
    fuzz_level: Annotated[Literal["L1"], _say("Columns of the result file.")] = "L1"
    fuzz_stage: Annotated[Literal["forward", "backward"], _say("backward: PyTorch only.")] = "forward"
    if_preheat: Annotated[StrictBool, _say("PyTorch: adapt the thresholds in the first iterations.")] = False
    preheat_step: Annotated[Count, _say("PyTorch, with if_preheat: number of these iterations.")] = 15
    max_sample: Annotated[Count, _say("PyTorch, with if_preheat: most samples per operator and step.")] = 20


class RunUt(_Frozen):
    """Task run_ut (PyTorch): settings of the pre-check of recorded APIs."""

    white_list: Annotated[Names, _say("Only these APIs are checked; [] = all.")] = ()
    black_list: Annotated[Names, _say("These APIs are left out, also where white_list names them.")] = ()
    error_data_path: Annotated[Name, _say("Existing folder for inputs and outputs of failing APIs.")] = "./"
    is_online: Annotated[StrictBool, _say("Online pre-check, the checking side.")] = False
    nfs_path: Annotated[StrictStr, _NFS_PATH] = ""
    host: Annotated[Host, _say("Online pre-check: IPv4 address of this machine.")] = ""
    port: Annotated[Port | None, _say("Online pre-check: a free port of this machine.")] = None
    rank_list: Annotated[Ranks, _say("Online pre-check: the ranks to check, the same on both sides.")] = (0,)
    tls_path: Annotated[StrictStr, _TLS_PATH] = ""


Section: TypeAlias = Statistics | Tensor | OverflowCheck | FreeBenchmark | RunUt


class ConfigFile(_Frozen):
    """msprobe config.json."""

    schema_address: Annotated[
        StrictStr, Field(alias="$schema", description="Address of this schema, for editors.")
    ] = ""
    task: Annotated[Task, _say("What to do; the section of the same name holds its settings.")] = "statistics"
    dump_path: Annotated[
        Name | None, _say("Folder for the output. MindSpore static graph: an absolute path.")
    ] = None
    rank: Annotated[Numbers, _say('Ranks to record, also ranges such as "3-5"; [] = all.')] = ()
    step: Annotated[Numbers, _say('Steps to record, also ranges such as "3-5"; [] = all.')] = ()
    level: Annotated[Level, _say("L0 modules, L1 APIs, mix both, L2 kernels, debug single values.")] = "L1"
    acl_config: Annotated[StrictStr, _say("PyTorch L2: path of acl_config.json.")] = ""
    seed: Annotated[
        Seed | None,
        _say("PyTorch: fix all random numbers with this seed; 1234 if only is_deterministic is set."),
    ] = None
    is_deterministic: Annotated[StrictBool | None, _say("PyTorch: use deterministic algorithms.")] = None
    enable_dataloader: Annotated[
        StrictBool, _say("PyTorch, one card, deprecated: take the steps from the DataLoader, then exit.")
    ] = False
    rm_dropout: Annotated[StrictBool, _say("PyTorch: switch dropout off while debugging.")] = True
    async_dump: Annotated[
        StrictBool,
        _say(
            "MindSpore L2 on Ascend: kernels are written behind training. Elsewhere accepted and ignored: "
            "files always are."
        ),
    ] = False
    precision: Annotated[Precision, _PRECISION] = "high"
    extra_info: Annotated[
        StrictBool, _say("Accepted and ignored: stacks and structure are always recorded.")
    ] = True
    statistics: Statistics = Statistics()
    tensor: Tensor = Tensor()
    overflow_check: OverflowCheck = OverflowCheck()
    free_benchmark: FreeBenchmark = FreeBenchmark()
    run_ut: RunUt = RunUt()

    @property
    def section(self) -> Section:
        section: Section = getattr(self, self.task)
        return section


SECTIONS: MappingProxyType[str, type[BaseModel]] = MappingProxyType(
    {
        "statistics": Statistics,
        "tensor": Tensor,
        "overflow_check": OverflowCheck,
        "free_benchmark": FreeBenchmark,
        "run_ut": RunUt,
    }
)


class AclConfig(_Frozen):
    """The part of acl_config.json that a kernel dump needs; CANN itself reads the file."""

    dump_path: Name
    dump_list: Annotated[tuple[Any, ...], Field(max_length=0)] = ()
    dump_mode: Literal["output", "input", "all"] = "output"
    dump_op_switch: Literal["off", "on"] = "off"
