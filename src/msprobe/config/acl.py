"""acl_config.json, the file that CANN reads for a kernel dump under PyTorch: what msprobe can know of it."""

import os
from pathlib import Path
from typing import NamedTuple

from msprobe.config.models import AclConfig
from msprobe.config.wording import check, nearest, refuse, without
from msprobe.errors import ConfigError
from msprobe.json_file import JsonObject, Remark, read_object

# Keys of CANN beside the documented four; whether their values are right is left to CANN.
_CANN_KEYS = ("dump_level", "dump_data", "dump_stats", "dump_step", "dump_debug", "dump_scene", "dump_layer")


class AclReading(NamedTuple):
    """What was read, and what there is to say about it."""

    config: AclConfig | None
    problems: tuple[str, ...]
    notices: tuple[str, ...]


def load_acl_config(path: str | os.PathLike[str]) -> AclConfig:
    """The settings of a kernel dump, checked; the folder for its data must exist."""
    reading = _read(read_object(path))
    refuse(reading.problems)
    if reading.config is None:
        raise AssertionError("an acl_config without problems must have a value")
    return reading.config


def read_acl_config(path: str | os.PathLike[str]) -> AclReading:
    try:
        return _read(read_object(path))
    except ConfigError as error:
        return AclReading(None, (str(error),), ())


def _read(file: JsonObject) -> AclReading:
    dump = file.value.get("dump")
    if not isinstance(dump, dict):
        return AclReading(None, (_no_dump(file),), ())
    config, wrong = check(AclConfig, without(dump, [(key,) for key in _CANN_KEYS]))
    if config is not None and not Path(config.dump_path).is_dir():
        text = f'is "{config.dump_path}", but there is no such folder; create it first'
        wrong.append(Remark(text, (("dump_path",),)))
    problems = tuple(file.sentence(Remark(one.text, (("dump", *one.keys[0]),))) for one in wrong)
    return AclReading(config, problems, _notices(file, config))


def _no_dump(file: JsonObject) -> str:
    near = "" if "dump" in file.value else nearest("dump", file.value)
    hint = f', perhaps what stands here as "{near}"' if near else ""
    return file.sentence(Remark(f"must be an object with the settings of the dump{hint}", (("dump",),)))


def _notices(file: JsonObject, config: AclConfig | None) -> tuple[str, ...]:
    if config is None or config.dump_op_switch == "on":
        return ()
    off = Remark('is "off", so no kernel data will be dumped; set it to "on"', (("dump", "dump_op_switch"),))
    return (file.sentence(off),)
