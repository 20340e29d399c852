"""GGUF files as plain float32 checkpoints.

transformers dequantises a GGUF file on every load, which takes ten seconds and more for the smallest models, most of it
in parsing the vocabulary. So the result is kept, as an ordinary directory, under the hash of the file. The model that
transformers returns still says that it is quantised and refuses to be saved; a fresh one of the same class does not.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
import transformers

from timscope.data.errors import BadInput
from timscope.replay.cache import cached_folder
from timscope.replay.quiet import quiet

_FORMAT = "gguf-fp32-1"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _convert(path: Path, target: Path) -> None:
    folder, name = str(path.parent), path.name
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)


def converted(path: Path) -> Path:
    """Directory of the float32 checkpoint and tokenizer made from a GGUF file. BadInput where it cannot be read."""

    def make(target: Path) -> None:
        try:
            with quiet():
                _convert(path, target)
        except ImportError as error:
            raise BadInput(f"reading {path} needs gguf and accelerate: pip install 'timscope[replay]'") from error
        except (ValueError, OSError, KeyError, RuntimeError, NotImplementedError) as error:
            reason = (str(error) or repr(error)).splitlines()[0]
            raise BadInput(f"{path} cannot be read as a GGUF model: {reason}") from error

    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise BadInput(f"{path} is not a GGUF file: give the model file itself, or a Hugging Face directory")
    return cached_folder(f"{_FORMAT}-{_sha256(path)[:24]}", make)
