"""config.json -> Config: one frozen value that says what to record, checked for the scene it is used in."""

from msprobe.config.acl import load_acl_config
from msprobe.config.loading import Config, json_schema, load, packaged_config
from msprobe.config.models import (
    AclConfig,
    DataMode,
    Framework,
    FreeBenchmark,
    Level,
    OverflowCheck,
    RunUt,
    Scene,
    Section,
    Statistics,
    Task,
    Tensor,
)

__all__ = [
    "AclConfig",
    "Config",
    "DataMode",
    "Framework",
    "FreeBenchmark",
    "Level",
    "OverflowCheck",
    "RunUt",
    "Scene",
    "Section",
    "Statistics",
    "Task",
    "Tensor",
    "json_schema",
    "load",
    "load_acl_config",
    "packaged_config",
]
