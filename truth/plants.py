"""Faults that are planted in models of transformers and timm, and the calls at which each of them acts.

What may be named is written as `module: calls`, several of them separated by ` ; `; the word module among
the calls stands for the module itself, where a call of it is missing, added or not recorded. It was written
from the source of the models and the order of their calls: the call that computes with the wrong value, the
call that hands it on, and where a call is missing or added the next one that the model makes. Three were
widened when a first answer showed a record that had been overlooked: the cast of labels, the module of a
norm that lacks its last call, and an empty module behind an activation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 0.05
Change = Callable[[nn.Module], None]


class Plant(NamedTuple):
    """A fault in a module of an architecture."""

    architecture: str
    name: str
    module: str  # "" is the model itself
    change: Change
    calls: str  # `module: calls`; a module that begins with . is below the changed one
    in_half: bool = True  # whether bfloat16 can show it at all
    steps: int = 1


def put(attribute: str, value: Any) -> Change:
    """Set an attribute of the module."""
    return lambda module: setattr(module, attribute, value)


def times(attribute: str, factor: float) -> Change:
    """Make a number, a parameter or a buffer too large."""

    def change(module: nn.Module) -> None:
        value = getattr(module, attribute)
        if isinstance(value, Tensor):
            value.data.mul_(factor)
        else:
            setattr(module, attribute, value * factor)

    return change


def emptied(attribute: str) -> Change:
    """A parameter that was never loaded: zeros."""
    return times(attribute, 0.0)


def weight_used_larger(module: nn.Module) -> None:
    """Compute with 1.05 times the weight; the parameter itself is right."""
    if isinstance(module, nn.Linear):
        module.forward = lambda x: F.linear(x, module.weight * 1.05, module.bias)
    else:
        module.forward = lambda x: module._conv_forward(x, module.weight * 1.05, module.bias)


def unweighted(module: nn.Module) -> None:
    """Leave out the weight of a norm."""
    if isinstance(module, nn.LayerNorm):
        module.forward = lambda x: F.layer_norm(x, module.normalized_shape, None, module.bias, module.eps)
        return

    def forward(x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)).to(x.dtype)

    module.forward = forward


def rope_theta(module: nn.Module) -> None:
    """Rotate with the frequencies of another base."""
    size = module.inv_freq.numel()
    module.inv_freq.copy_(1.0 / 500.0 ** (torch.arange(size) / size))


def activation(kind: Callable[[], nn.Module], attribute: str) -> Change:
    """Another activation function."""
    return lambda module: setattr(module, attribute, kind())


GELU_TANH = partial(nn.GELU, approximate="tanh")
RMS_EPS = ": __add__|rsqrt"
ROPE = ": float|to|__mul__|__matmul__"
CAUSAL = (  # decoders of one family: names of their modules are the same
    ("llama", "q_proj"),
    ("qwen3", "q_proj"),
    ("gemma2", "q_proj"),
    ("mixtral", "q_proj"),
    ("qwen3_moe", "q_proj"),
    ("deepseek_v3", "q_a_proj"),
)


def _of_decoders() -> list[Plant]:
    found = []
    for name, first in CAUSAL:
        norm, attention = "model.layers.1.input_layernorm", "model.layers.1.self_attn"
        eps = "eps" if name == "gemma2" else "variance_epsilon"
        scale = "__mul__" if name == "gemma2" else "scaled_dot_product_attention"
        found += [
            Plant(name, "eps", norm, put(eps, EPS), RMS_EPS),
            Plant(name, "rope_theta", "model.rotary_emb", rope_theta, ROPE),
            Plant(name, "scale", attention, times("scaling", 1.1), f": {scale}"),
            Plant(name, "weight_1.05", "lm_head", times("weight", 1.05), ": linear")
            if name not in ("gemma2",)
            else Plant(name, "weight_1.05", f"{attention}.o_proj", times("weight", 1.05), ": linear"),
        ]
        if name not in ("gemma2", "deepseek_v3"):
            calls = f": __mul__|to|module ; {attention}.{first}: linear"
            found.append(Plant(name, "unweighted", norm, unweighted, calls))
    return found


_MLP = "model.layers.0.mlp"
_GATE = "model.layers.1.mlp.gate"
_MIXER = "backbone.layers.1.mixer"
_BERT = "bert.encoder.layer.1"
_T5 = "encoder.block.0.layer.0.SelfAttention"
PLANTS: list[Plant] = [
    *_of_decoders(),
    Plant("llama", "activation", _MLP, activation(nn.GELU, "act_fn"), ".act_fn: .* ; : __mul__"),
    Plant("llama", "rope_scaling", "model.rotary_emb", put("attention_scaling", 1.05), ": __mul__"),
    Plant(
        "llama", "used_1.05", "model.layers.0.self_attn.v_proj", weight_used_larger, ": linear|__mul__|mul"
    ),
    Plant("llama", "not_causal", "model.layers.0.self_attn", put("is_causal", False), ": scaled_dot.*"),
    Plant("qwen3", "norm_weight", "model.layers.1.self_attn.k_norm", times("weight", 1.05), ": __mul__"),
    Plant(
        "gemma2",
        "softcap",
        "model.layers.1.self_attn",
        put("attn_logit_softcapping", 2.0),
        ": __truediv__|__mul__",
    ),
    Plant("gemma2", "embed_scale", "model.embed_tokens", times("embed_scale", 1.05), ": to|__mul__"),
    Plant(
        "gemma2", "activation", "model.layers.0.mlp", activation(nn.ReLU, "act_fn"), ".act_fn: .* ; : __mul__"
    ),
    Plant(
        "qwen3_moe",
        "topk_norm",
        _GATE,
        put("norm_topk_prob", True),
        ": sum|__itruediv__|__truediv__|div_|div|to|module ; model.layers.1.mlp.experts: __mul__",
    ),
    Plant("qwen3_moe", "router_weight", _GATE, times("weight", 1.05), ": linear"),
    Plant("deepseek_v3", "routed_scale", _GATE, times("routed_scaling_factor", 1.05), ": __mul__"),
    Plant(
        "deepseek_v3", "kv_weight", "model.layers.0.self_attn.kv_b_proj", times("weight", 1.05), ": linear"
    ),
    Plant(
        "mixtral",
        "expert_weight",
        "model.layers.1.mlp.experts",
        times("down_proj", 1.05),
        ": transpose|to|_grouped_mm|grouped_mm|__mul__",
    ),
    Plant("mamba2", "eps", f"{_MIXER}.norm", put("variance_epsilon", EPS), RMS_EPS),
    Plant("mamba2", "skip", _MIXER, times("D", 1.05), ": __mul__|__add__|__getitem__"),
    Plant("mamba2", "decay", _MIXER, times("A_log", 1.3), ": float|exp"),
    Plant(
        "mamba2",
        "conv_1.05",
        f"{_MIXER}.conv1d",
        times("weight", 1.05),
        ": conv1d ; backbone.layers.1.mixer: conv1d|squeeze",
    ),
    Plant("mamba2", "weight_1.05", f"{_MIXER}.in_proj", times("weight", 1.05), ": linear"),
    Plant("gpt2", "eps", "transformer.h.1.ln_2", put("eps", EPS), ": layer_norm"),
    Plant(
        "gpt2",
        "activation",
        "transformer.h.0.mlp",
        activation(nn.ReLU, "act"),
        ".act: .* ; transformer.h.0.mlp.c_proj: addmm",
    ),
    Plant("gpt2", "position", "transformer.wpe", emptied("weight"), ": embedding"),
    Plant("gpt2", "dropout", "transformer.h.0.attn.resid_dropout", put("p", 0.1), ": dropout"),
    Plant("gpt2", "scale", "transformer.h.1.attn", times("scaling", 1.1), ": scaled_dot.*"),
    Plant("gpt2", "weight_1.05", "transformer.h.1.mlp.c_fc", times("weight", 1.05), ": addmm"),
    Plant("gpt2", "unweighted", "transformer.ln_f", unweighted, ": layer_norm"),
    Plant("bert", "eps", f"{_BERT}.attention.output.LayerNorm", put("eps", EPS), ": layer_norm"),
    Plant(
        "bert",
        "gelu_tanh",
        f"{_BERT}.intermediate",
        activation(GELU_TANH, "intermediate_act_fn"),
        ".intermediate_act_fn: .*",
        in_half=False,
    ),
    Plant(
        "bert",
        "activation",
        "bert.encoder.layer.0.intermediate",
        activation(nn.SiLU, "intermediate_act_fn"),
        ".intermediate_act_fn: .* ; bert.encoder.layer.0.output.dense: linear",
    ),
    Plant("bert", "position", "bert.embeddings.position_embeddings", emptied("weight"), ": embedding"),
    Plant("bert", "unweighted", f"{_BERT}.output.LayerNorm", unweighted, ": layer_norm"),
    Plant("bert", "dropout", "bert.encoder.layer.0.output.dropout", put("p", 0.1), ": dropout"),
    Plant("bert", "used_1.05", f"{_BERT}.attention.self.key", weight_used_larger, ": linear|__mul__|mul"),
    Plant("t5", "eps", "encoder.block.1.layer.1.layer_norm", put("variance_epsilon", EPS), RMS_EPS),
    Plant("t5", "distance", _T5, put("relative_attention_max_distance", 20), ": __truediv__"),
    Plant(
        "t5",
        "activation",
        "encoder.block.1.layer.1.DenseReluDense",
        activation(nn.GELU, "act"),
        ".act: .* ; .dropout: dropout",
    ),
    Plant(
        "t5", "weight_1.05", "decoder.block.1.layer.1.EncDecAttention.v", times("weight", 1.05), ": linear"
    ),
    Plant(
        "t5",
        "unweighted",
        "decoder.final_layer_norm",
        unweighted,
        ": __mul__|to|module ; decoder.dropout: dropout",
    ),
    Plant("bart", "embed_scale", "model.encoder.embed_tokens", put("embed_scale", 1.5), ": __mul__"),
    Plant("bart", "eps", "model.decoder.layers.1.final_layer_norm", put("eps", EPS), ": layer_norm"),
    Plant(
        "bart",
        "activation",
        "model.encoder.layers.1",
        activation(nn.ReLU, "activation_fn"),
        ".activation_fn: .* ; : dropout",
    ),
    Plant("bart", "scale", "model.decoder.layers.0.encoder_attn", times("scaling", 1.1), ": scaled_dot.*"),
    Plant("whisper", "eps", "model.encoder.layers.1.final_layer_norm", put("eps", EPS), ": layer_norm"),
    Plant("whisper", "scale", "model.encoder.layers.1.self_attn", times("scaling", 1.1), ": __mul__"),
    Plant("whisper", "used_1.05", "model.encoder.conv2", weight_used_larger, ": conv1d|__mul__|mul"),
    Plant("whisper", "position", "model.encoder.embed_positions", emptied("weight"), ": embedding"),
    Plant("vit", "eps", "vit.layers.1.layernorm_before", put("eps", EPS), ": layer_norm"),
    Plant("vit", "position", "vit.embeddings", emptied("position_embeddings"), ": __add__"),
    Plant(
        "vit", "weight_1.05", "vit.embeddings.patch_embeddings.projection", times("weight", 1.05), ": conv2d"
    ),
    Plant(
        "vit",
        "gelu_tanh",
        "vit.layers.0.mlp",
        activation(GELU_TANH, "activation_fn"),
        ".activation_fn: .*",
        in_half=False,
    ),
    Plant("vit", "unweighted", "vit.layernorm", unweighted, ": layer_norm"),
    Plant("swin", "eps", "swin.encoder.layers.0.blocks.1.layernorm_after", put("eps", EPS), ": layer_norm"),
    Plant(
        "swin",
        "no_shift",
        "swin.encoder.layers.0.blocks.1",
        put("shift_size", 0),
        ": pad|roll|transpose ; .attention.q_proj: linear",
    ),
    Plant(
        "swin",
        "used_1.05",
        "swin.encoder.layers.1.blocks.0.mlp.fc2",
        weight_used_larger,
        ": linear|__mul__|mul",
    ),
    Plant("swin", "dropout", "swin.embeddings.dropout", put("p", 0.1), ": dropout"),
    Plant(
        "resnet",
        "eps",
        "resnet.encoder.stages.1.layers.0.layer.1.normalization",
        put("eps", EPS),
        ": batch_norm",
    ),
    Plant(
        "resnet",
        "evaluating",
        "resnet.encoder.stages.0.layers.0.layer.0.normalization",
        nn.Module.eval,
        ": batch_norm|add_",
    ),
    Plant("resnet", "weight_1.05", "classifier.1", times("weight", 1.05), ": linear"),
    Plant("convnext", "eps", "convnext.encoder.stages.1.layers.1.layernorm", put("eps", EPS), ": layer_norm"),
    Plant(
        "convnext",
        "layer_scale",
        "convnext.encoder.stages.1.layers.0",
        times("layer_scale_parameter", 1.5),
        ": __mul__",
    ),
    Plant(
        "convnext",
        "weight_1.05",
        "convnext.encoder.stages.1.layers.0.dwconv",
        times("weight", 1.05),
        ": conv2d",
    ),
    Plant("timm_vit", "eps", "blocks.1.norm1", put("eps", EPS), ": layer_norm"),
    Plant("timm_vit", "scale", "blocks.0.attn.qkv", weight_used_larger, ": linear|__mul__|mul"),
    Plant("timm_resnet", "eps", "layer2.0.bn1", put("eps", EPS), ": batch_norm"),
    Plant(
        "timm_resnet",
        "activation",
        "layer1.1",
        activation(nn.SiLU, "act1"),
        ".act1: .* ; .aa: module ; .conv2: conv2d",
    ),
    Plant("timm_resnet", "momentum", "layer1.0.bn2", put("momentum", 0.5), ": batch_norm", steps=2),
    Plant("timm_convnext", "layer_scale", "stages.2.blocks.0", times("gamma", 1.5), ": reshape|mul"),
    Plant(
        "timm_convnext",
        "activation",
        "stages.1.blocks.0.mlp",
        activation(nn.ReLU, "act"),
        ".act: .* ; .drop1: .*",
    ),
    Plant("timm_mobilenet", "gate", "blocks.2.1.se", activation(nn.Sigmoid, "gate"), ".gate: .* ; : __mul__"),
    Plant("timm_mobilenet", "eps", "blocks.1.1.bn2", put("eps", EPS), ": batch_norm"),
]


def module_of(plant: Plant, part: str) -> str:
    """The full name of a module of `calls`."""
    if not part:
        return plant.module
    return plant.module + part if part.startswith(".") else part


def culprit_of(plant: Plant) -> str:
    """What may be named, as `in module: calls ; ...` with full names."""
    found = []
    for each in plant.calls.split(" ; "):
        module, _, calls = each.partition(": ")
        found.append(f"{module_of(plant, module.strip().rstrip(':'))}: {calls.strip()}")
    return "in " + " ; ".join(found)
