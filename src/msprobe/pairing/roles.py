"""What the arguments and parameters of calls are, in whichever framework."""

from __future__ import annotations

from types import MappingProxyType

from msprobe.name import CallName
from msprobe.operators import is_reversed, operator_of

_PARAMETERS = MappingProxyType(
    {
        "gamma": "weight",
        "beta": "bias",
        "embedding_table": "weight",
    }
)
# Parameters of a Cell that PyTorch keeps as buffers.
_BUFFERS = MappingProxyType({"moving_mean": "running_mean", "moving_variance": "running_var"})
_KEYWORDS = MappingProxyType(
    {
        "axis": "dim",
        "keep_dims": "keepdim",
        "keepdims": "keepdim",
        "x": "input",
        "input_x": "input",
        "y": "other",
        "label": "target",
        "labels": "target",
        "logits": "input",
    }
)
# `mint` of MindSpore defines its APIs as PyTorch does, behind these prefixes.
MINT_PREFIXES = MappingProxyType(
    {"Mint": "Torch", "MintFunctional": "Functional", "MintDistributed": "Distributed"}
)
# Behind these prefixes tensors come in the order of the kernel: torch.batch_norm is not F.batch_norm.
_IN_ORDER_OF_KERNELS = ("Primitive", "Torch", "Aten")


def roles(name: CallName) -> tuple[str, ...]:
    """What the tensors at the positions of a call are, where one must know that to pair them."""
    if name.is_module:
        return ()
    operator = operator_of(name)
    return operator.tensors_of_primitive if name.prefix in _IN_ORDER_OF_KERNELS else operator.tensors


def are_defined_alike(ours: CallName, theirs: CallName, *, same_framework: bool) -> bool:
    """Whether every argument of two calls means the same: one API, an operator of Python, or one of mint."""
    if same_framework and ours.owner == theirs.owner:
        return True
    if ours.is_module or theirs.is_module:
        return same_framework and ours.is_module == theirs.is_module and ours.kind == theirs.kind
    if ours.api != theirs.api:
        return False
    prefixes = {MINT_PREFIXES.get(name.prefix, name.prefix) for name in (ours, theirs)}
    is_mint = len(prefixes) == 1 and ours.prefix != theirs.prefix
    is_operator = ours.api.startswith("__") and ours.api.endswith("__")
    return is_operator or is_mint or (same_framework and ours.prefix == theirs.prefix)


def plain_role(name: CallName, position: int) -> str:
    """What a plain number at a position of a call is, if frameworks agree on it; else empty."""
    known = () if name.is_module or is_reversed(name) else operator_of(name).plain
    return known[position] if position < len(known) else ""


def other_slot(slot: str) -> str | None:
    """How PyTorch calls the parameter, buffer or keyword of a slot, if otherwise than MindSpore."""
    head, _, last = slot.rpartition(".")
    if head == ".parameters" and last in _BUFFERS:
        return f".buffers.{_BUFFERS[last]}"
    known = _KEYWORDS if head.endswith("input") else _PARAMETERS
    return f"{head}.{known[last]}" if last in known else None
