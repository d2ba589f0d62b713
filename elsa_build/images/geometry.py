"""What of a model and of a card decides memory, read from data files or a checkpoint's own config.

Both are data, so that another model of the family, or another card, needs no code.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError
from elsa_build.images.sizing import Card, Geometry
from elsa_build.strictyaml import Problems, read
from elsa_build.yamlform import Check, Form, nearest

_HERE = Path(__file__).parent
STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_SIZES = {
    "value_heads": "linear_num_value_heads",
    "key_heads": "linear_num_key_heads",
    "value_dim": "linear_value_head_dim",
    "key_dim": "linear_key_head_dim",
    "conv_kernel": "linear_conv_kernel_dim",
    "kv_heads": "num_key_value_heads",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
}
"""Our fields, and what a checkpoint's config.json of this family calls them."""

_KERNEL_SIZES = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "moe_intermediate": "moe_intermediate_size",
}
"""What only kernels depend on; a dense model has no experts."""


def models() -> tuple[str, ...]:
    """Return the names of the models that elsa-build knows."""
    return tuple(sorted(path.stem for path in (_HERE / "models").glob("*.yaml")))


def model(name: str, root: Path) -> Geometry:
    """Return a model by its name, or by the path of its `config.json` (relative to the project).

    Raises:
        ConfigError: There is no such model, or its file is wrong (exit 5).
    """
    if name.endswith(".json"):
        return from_config(root / name, name)
    if name not in models():
        raise ConfigError(
            f"no model '{name}'{nearest(name, models())}",
            hint=f"--model {' | '.join(models())} | path/to/config.json",
        )
    shown = f"{name}.yaml"
    problems = Problems(shown)
    form = Form(read(_HERE / "models" / shown, shown), problems)
    form.integer("version", 1)
    numbers = {
        key: form.integer(key, 0, minimum=1)
        for key in (*_SIZES, "linear_layers", "attention_layers", "head_dim")
    }
    numbers |= {key: form.integer(key, 0) for key in (*_KERNEL_SIZES, "rotary_dim")}
    found = Geometry(
        name=form.text("name", required=True),
        draft_layers=form.integer("draft_layers", 1),
        state_dtype=form.text("state_dtype", "float32", check=_one_of(*STATE_BYTES)),
        multimodal=form.boolean("multimodal"),
        **numbers,
    )
    form.close()
    problems.check()
    return found


def card(name: str) -> Card:
    """Return a card by its name.

    Raises:
        ConfigError: It is not in the list (exit 5).
    """
    known = _cards()
    if name not in known:
        raise ConfigError(
            f"no card '{name}'{nearest(name, known)}", hint=f"--card {' | '.join(known)}"
        )
    return known[name]


def _cards() -> dict[str, Card]:
    problems = Problems("cards.yaml")
    form = Form(read(_HERE / "cards.yaml", problems.name), problems)
    form.integer("version", 1)
    found = {}
    for entry in form.forms("cards"):
        one = Card(
            name=entry.text("name", required=True),
            memory_mib=entry.integer("memory_mib", 0, minimum=1),
            arch=entry.text("arch", required=True),
        )
        entry.close()
        found[one.name] = one
    form.close()
    problems.check()
    return found


def from_config(path: Path, shown: str) -> Geometry:
    """Return the geometry that a checkpoint's `config.json` describes.

    Layers are told apart by `layer_types`, else by `full_attention_interval`. One layer of
    multi-token prediction is assumed where the file does not say: SGLang assumes it for the family.

    Raises:
        ConfigError: It cannot be read, or lacks a field of a hybrid model (exit 5).

    Source: sglang v0.5.23 srt/configs/qwen3_next.py, srt/configs/model_config.py.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"{shown}: cannot read: {e.strerror}") from e
    except ValueError as e:
        raise ConfigError(f"{shown}: not JSON: {e}") from e
    config = whole.get("text_config", whole) if isinstance(whole, dict) else None
    if not isinstance(config, dict):
        raise ConfigError(f"{shown}: must be a mapping")
    numbers = {ours: _number(config, theirs, shown) for ours, theirs in _SIZES.items()}
    linear, attention = _layers(config, shown)
    dtype = config.get("mamba_ssm_dtype", "float32")
    if dtype not in STATE_BYTES:
        raise ConfigError(f"{shown}: mamba_ssm_dtype: '{dtype}' is no type that sglang knows")
    head_dim = config.get("head_dim") or (
        _number(config, "hidden_size", shown) // _number(config, "num_attention_heads", shown)
    )
    optional = {ours: int(config.get(theirs) or 0) for ours, theirs in _KERNEL_SIZES.items()}
    return Geometry(
        rotary_dim=int(head_dim * _rotated(config)),
        **optional,
        name=path.resolve().parent.name,
        linear_layers=linear,
        attention_layers=attention,
        head_dim=head_dim,
        draft_layers=int(config.get("mtp_num_hidden_layers", 1)),
        state_dtype=dtype,
        multimodal="vision_config" in whole,
        **numbers,
    )


def _rotated(config: Mapping[str, Any]) -> float:
    """Return the share of a head that rotates; newer configs keep it with the other of RoPE."""
    nested = config.get("rope_parameters") or {}
    return float(config.get("partial_rotary_factor", nested.get("partial_rotary_factor", 1.0)))


def _layers(config: Mapping[str, Any], shown: str) -> tuple[int, int]:
    types = config.get("layer_types")
    if types:
        full = sum(name == "full_attention" for name in types)
        return len(types) - full, full
    layers = _number(config, "num_hidden_layers", shown)
    full = layers // _number(config, "full_attention_interval", shown)
    return layers - full, full


def _number(config: Mapping[str, Any], key: str, shown: str) -> int:
    found = config.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ConfigError(f"{shown}: {key}: must be a whole number above 0 in a hybrid model")
    return found


def _one_of(*words: str) -> Check:
    def check(text: str) -> str | None:
        return None if text in words else f"'{text}' is none of {', '.join(words)}"

    return check
