"""config.json -> Config: one frozen value that says what to record, checked for the scene it is used in."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

from msprobe.config.acl import AclReading, read_acl_config
from msprobe.config.models import (
    DEFAULT_SEED,
    SECTIONS,
    ConfigFile,
    Level,
    Scene,
    Section,
    Statistics,
    Task,
    Tensor,
)
from msprobe.config.notices import idle, ignored
from msprobe.config.rules import kernel_apis, problems
from msprobe.config.wording import check, refuse, without
from msprobe.errors import ConfigError
from msprobe.given import is_path
from msprobe.json_file import Json, JsonObject, Remark, read_object


class Config(BaseModel):
    """What to record, where, and how: the common settings and the section of the one chosen task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dump_path: str
    scene: Scene = Scene.PYTORCH
    task: Task = "statistics"
    level: Level = "L1"
    rank: tuple[int, ...] = ()
    step: tuple[int, ...] = ()
    acl_config: str | None = None
    seed: int | None = None
    is_deterministic: bool | None = None
    enable_dataloader: bool = False
    rm_dropout: bool = True
    async_dump: bool = False
    section: Section = Statistics()

    @model_validator(mode="after")
    def _section_is_of_the_task(self) -> "Config":
        if type(self.section) is not SECTIONS[self.task]:
            raise ValueError(f"the section of task {self.task} cannot be a {type(self.section).__name__}")
        return self

    @property
    def seeding(self) -> tuple[int, bool] | None:
        """Seed and deterministic mode to set once; None where the user asked for neither."""
        if self.seed is None and self.is_deterministic is None:
            return None
        return (DEFAULT_SEED if self.seed is None else self.seed), bool(self.is_deterministic)


class _Source(NamedTuple):
    """Where the values come from: a file, and arguments that win over it."""

    file: JsonObject
    arguments: Mapping[str, Json]

    @property
    def given(self) -> dict[str, Json]:
        return {**self.file.value, **self.arguments}

    def sentence(self, remark: Remark) -> str:
        if remark.keys[0][0] in self.arguments:
            return f"The argument {remark.sentence}"
        return self.file.sentence(remark)


def packaged_config() -> Path:
    """The configuration that holds where the user names none."""
    return Path(__file__).parents[1] / "config.json"


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    scene: Scene,
    task: str | None = None,
    dump_path: str | os.PathLike[str] | None = None,
    level: str | None = None,
    step: Iterable[int | str] | None = None,
) -> tuple[Config, tuple[str, ...]]:
    """The configuration for this scene, and one line for the log about each setting without effect.

    Arguments that are not None win over the file. A ConfigError names every problem at once.
    """
    if path is not None and not is_path(path):
        raise ConfigError(f"config_path is {path!r}, but it must be the path of a file.")
    named = {"task": task, "dump_path": _plain(dump_path), "level": level, "step": _plain(step)}
    arguments = {key: value for key, value in named.items() if value is not None}
    source = _Source(read_object(packaged_config() if path is None else path), MappingProxyType(arguments))
    given = source.given
    _, wrong = check(ConfigFile, given)
    unused = ignored(given, str(given.get("task", "statistics")), scene)
    file, _ = check(ConfigFile, without(given, [remark.keys[0] for remark in wrong] + list(unused)))
    if file is None:
        raise AssertionError("a configuration without its wrong keys must be valid")
    wrong += [remark for remark in problems(file, scene) if not _rests_on(remark, wrong)]
    acl = _acl(file, scene)
    refuse((*(source.sentence(remark) for remark in wrong), *acl.problems))
    remarks = [Remark(f"is ignored: {reason}", (key,)) for key, reason in unused.items()] + list(idle(file))
    return _config(file, scene), (*(source.sentence(remark) for remark in remarks), *acl.notices)


def _plain(argument: Any) -> Any:
    """An argument in the form that the same setting has in a file."""
    if isinstance(argument, os.PathLike):
        return os.fspath(argument)
    return list(argument) if isinstance(argument, (tuple, range)) else argument


def _rests_on(remark: Remark, wrong: list[Remark]) -> bool:
    """Whether a rule was judged with a default because the real value is wrong: then it says nothing true."""
    bad = [other.keys[0] for other in wrong]
    return any(key[: len(one)] == one[: len(key)] for key in remark.keys for one in bad)


def _acl(file: ConfigFile, scene: Scene) -> AclReading:
    kernel_dump = scene is Scene.PYTORCH and file.level == "L2"
    if kernel_dump and file.acl_config.endswith(".json") and Path(file.acl_config).is_file():
        return read_acl_config(file.acl_config)
    return AclReading(None, (), ())


def _config(file: ConfigFile, scene: Scene) -> Config:
    section = file.section
    if isinstance(section, Tensor) and file.level == "L2" and scene is Scene.PYTORCH:
        section = section.model_copy(update={"scope": kernel_apis(section), "list": ()})
    return Config(
        scene=scene,
        task=file.task,
        dump_path=file.dump_path or "",
        rank=file.rank,
        step=file.step,
        level=file.level,
        acl_config=file.acl_config or None,
        seed=file.seed,
        is_deterministic=file.is_deterministic,
        enable_dataloader=file.enable_dataloader,
        rm_dropout=file.rm_dropout,
        async_dump=file.async_dump,
        section=section,
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of config.json, for editors."""
    schema = _tidy(ConfigFile.model_json_schema(by_alias=True))
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "msprobe config.json", **schema, "required": ["dump_path"]}


def _tidy(node: Any) -> Any:
    """Drops what pydantic adds for itself: titles, and "or null" for a setting that may be absent."""
    if isinstance(node, list):
        return [_tidy(item) for item in node if item != {"type": "null"}]
    if not isinstance(node, dict):
        return node
    kept = {
        key: _tidy(value)
        for key, value in node.items()
        if key != "title" and (key, value) != ("default", None)
    }
    options = kept.get("anyOf", [])
    if len(options) != 1:
        return kept
    del kept["anyOf"]
    return {**options[0], **kept}
