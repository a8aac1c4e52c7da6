"""Tiny models of transformers and timm with random parameters, and one step of training for each.

Settings can be overridden by name (`rms_norm_eps=1e-3`), which is how faults are planted.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH, SIDE, CLASSES = 67, 32, 4, 12, 3, 32, 7
NO_CACHE = {"use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 32,
    **NO_CACHE,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
STAGES = {"depths": [1, 2], "num_channels": 3}


class Architecture(NamedTuple):
    """How a model is made: the class of transformers and its settings, or the name that timm has for it."""

    made_by: str
    settings: dict[str, Any]
    data: str  # words, words and labels, seq2seq, sound or pictures
    has_attention_choice: bool = True  # eager or sdpa
    can_checkpoint: bool = True


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", {**GROUPED, "rope_theta": 10000.0}, "words"),
    "qwen3": Architecture("Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}, "words"),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        {**GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8},
        "words",
        has_attention_choice=False,
    ),
    "mixtral": Architecture(
        "MixtralForCausalLM", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, "words"
    ),
    "qwen3_moe": Architecture(
        "Qwen3MoeForCausalLM",
        {
            **GROUPED,
            "head_dim": 8,
            "moe_intermediate_size": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "experts_implementation": "eager",
        },
        "words",
    ),
    "deepseek_v3": Architecture(
        "DeepseekV3ForCausalLM",
        {
            **SIZES,
            "num_key_value_heads": HEADS,
            "moe_intermediate_size": 16,
            "experts_implementation": "eager",
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "qk_nope_head_dim": 8,
        },
        "words",
    ),
    "mamba2": Architecture(
        "Mamba2ForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "num_hidden_layers": 2,
            "state_size": 16,
            "head_dim": 16,
            "num_heads": 4,
            "expand": 2,
            "n_groups": 1,
            "chunk_size": 8,
            **NO_CACHE,
        },
        "words",
        has_attention_choice=False,
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": HEADS,
            "n_positions": 32,
            **NO_CACHE,
        },
        "words",
    ),
    "bert": Architecture("BertForMaskedLM", {**SIZES}, "words"),
    "t5": Architecture(
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "d_kv": 8,
            "d_ff": 2 * WIDTH,
            "num_layers": 2,
            "num_heads": HEADS,
            "use_cache": False,
            "decoder_start_token_id": 0,
        },
        "seq2seq",
        has_attention_choice=False,
    ),
    "bart": Architecture(
        "BartForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS,
            "encoder_ffn_dim": 2 * WIDTH,
            "decoder_ffn_dim": 2 * WIDTH,
            "max_position_embeddings": 32,
            **NO_CACHE,
        },
        "seq2seq",
    ),
    "whisper": Architecture(
        "WhisperForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS,
            "encoder_ffn_dim": 2 * WIDTH,
            "decoder_ffn_dim": 2 * WIDTH,
            "num_mel_bins": 16,
            "max_source_positions": 20,
            "max_target_positions": 20,
            "decoder_start_token_id": 1,
            **NO_CACHE,
        },
        "sound",
    ),
    "vit": Architecture(
        "ViTForImageClassification",
        {
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "image_size": SIDE,
            "patch_size": 8,
        },
        "pictures",
    ),
    "swin": Architecture(
        "SwinForImageClassification",
        {
            "image_size": SIDE,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        "pictures",
        has_attention_choice=False,
    ),
    "resnet": Architecture(
        "ResNetForImageClassification",
        {**STAGES, "embedding_size": 16, "hidden_sizes": [16, 24], "layer_type": "basic"},
        "pictures",
        has_attention_choice=False,
        can_checkpoint=False,
    ),
    "convnext": Architecture(
        "ConvNextForImageClassification",
        {**STAGES, "num_stages": 2, "hidden_sizes": [16, 24], "patch_size": 4},
        "pictures",
        has_attention_choice=False,
        can_checkpoint=False,
    ),
    "timm_vit": Architecture(
        "timm:vit_tiny_patch16_224",
        {"img_size": SIDE, "patch_size": 8, "embed_dim": WIDTH, "depth": 2, "num_heads": HEADS},
        "pictures",
        has_attention_choice=False,
    ),
    "timm_resnet": Architecture(
        "timm:resnet18",
        {"channels": (8, 16, 16, 24), "stem_width": 8},
        "pictures",
        has_attention_choice=False,
    ),
    "timm_convnext": Architecture(
        "timm:convnext_atto",
        {"depths": (1, 1, 2, 1), "dims": (8, 16, 16, 24)},
        "pictures",
        has_attention_choice=False,
    ),
    "timm_mobilenet": Architecture("timm:mobilenetv3_small_050", {}, "pictures", has_attention_choice=False),
}
NO_DROPOUT = ("dropout", "attention_dropout", "activation_dropout", "hidden_dropout_prob", "dropout_rate")
NO_DROPOUT += ("attention_probs_dropout_prob", "attn_pdrop", "embd_pdrop", "resid_pdrop", "drop_path_rate")


def model_of(name: str, **overrides: Any) -> nn.Module:
    """A model with random parameters, in which every part counts; dropout is off unless asked for."""
    made = ARCHITECTURES[name]
    if made.made_by.startswith("timm:"):
        model = packages()[1].create_model(
            made.made_by[5:], num_classes=CLASSES, **{**made.settings, **overrides}
        )
    else:
        model = _of_transformers(made, overrides)
    _randomize(model)
    return model.train()


def _of_transformers(made: Architecture, overrides: dict[str, Any]) -> nn.Module:
    kind = getattr(packages()[0], made.made_by)
    settings = {**made.settings, **overrides}
    attention = settings.pop("attention", "sdpa" if made.has_attention_choice else None)
    config = kind.config_class(**{**settings, "num_labels": CLASSES} if made.data == "pictures" else settings)
    for key in NO_DROPOUT:
        if hasattr(config, key) and key not in overrides:
            setattr(config, key, 0.0)
    if attention is not None:
        config._attn_implementation = attention
    model: nn.Module = kind(config)
    return model


def _randomize(model: nn.Module) -> None:
    """Weights of unit gain, and vectors off their initial values, so that none of them is neutral."""
    random = torch.Generator().manual_seed(41)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() >= 2:
                value.copy_(torch.randn(value.shape, generator=random) / value[0].numel() ** 0.5)
            else:
                value.add_(0.1 * torch.randn(value.shape, generator=random))


def packages() -> tuple[Any, Any]:
    """The packages transformers and timm; both import torchvision, which may lack its operators on a CPU."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
    return importlib.import_module("transformers"), importlib.import_module("timm")


_kept: list[Any] = []  # a library that is collected takes its operators with it


def batch_of(name: str) -> dict[str, Tensor]:
    """One batch; the same in every run."""
    random = torch.Generator().manual_seed(43)
    kind = ARCHITECTURES[name].data
    words = torch.randint(3, VOCABULARY, (2, BATCH, LENGTH), generator=random)
    if kind == "words":
        return {"input_ids": words[0], "labels": words[1]}
    if kind == "seq2seq":
        return {"input_ids": words[0], "labels": words[1, :, :8].contiguous()}
    if kind == "sound":
        return {
            "input_features": torch.randn(BATCH, 16, 40, generator=random),
            "labels": words[1, :, :8].contiguous(),
        }
    labels = torch.randint(0, CLASSES, (4,), generator=random)
    return {"pixel_values": torch.randn(4, 3, SIDE, SIDE, generator=random), "labels": labels}


def loss_of(name: str, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of one batch, cast to the dtype of the model."""
    wanted = next(parameter.dtype for parameter in model.parameters())
    batch = {key: value.to(wanted) if value.is_floating_point() else value for key, value in batch.items()}
    if ARCHITECTURES[name].made_by.startswith("timm:"):
        return nn.functional.cross_entropy(model(batch["pixel_values"]).float(), batch["labels"])
    return model(**batch).loss
