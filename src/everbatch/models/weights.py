"""Loads a model's configuration and weights from a directory or a GGUF file.

Belongs here: which files make a model, and that every tensor of the network is there exactly once
with its shape. Not here: the formats (safetensors_files.py, gguf_file.py), the hub, the tokenizer.
Called by assemble.

Covered: a directory with config.json and safetensors, a .gguf file; float32 in memory whatever the
file has. Not covered: split GGUF, other formats; each is refused by name.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from everbatch.base.errors import ModelLoadError
from everbatch.kernels.arrays import Floats
from everbatch.models.config import ModelConfig
from everbatch.models.file_errors import reading
from everbatch.models.gguf_file import open_gguf, undo_permutation
from everbatch.models.hf_config import from_hf
from everbatch.models.json_file import read_json
from everbatch.models.llama import tensor_shapes
from everbatch.models.safetensors_files import list_safetensors
from everbatch.models.stored_tensor import StoredTensor, read_as_float32
from everbatch.models.tensor_names import LM_HEAD, is_computed

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"

Progress = Callable[[int, int], None]
"""Called with the bytes of weights read so far and in all."""

Reorder = Callable[[str, Floats], Floats]
"""Called with a tensor's name and values, gives the values in Hugging Face's order."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """tensors: float32, C-contiguous, Hugging Face names, projections [out, in]; without lm_head
    where config.tie_word_embeddings. A backend that packs them empties the dict.
    stored_types: the types in the file, most bytes first."""

    config: ModelConfig
    tensors: dict[str, Floats]
    num_parameters: int
    stored_types: tuple[str, ...]


def load_config(path: Path) -> ModelConfig:
    """Read a model's configuration without its weights. Errors as in `load_model`."""
    with reading(path):
        return open_gguf(path).config if _is_gguf(path) else _directory_config(path)


def load_model(path: Path, progress: Progress | None = None) -> LoadedModel:
    """Read the model at `path`, a directory or a .gguf file, into float32.

    Tensor by tensor: the peak is the result plus a few megabytes. ModelLoadError names the file
    and what is wrong with it; UnsupportedModel, a kind of it, what everbatch does not have.
    """
    reorder: Reorder = _as_it_is
    with reading(path):
        if _is_gguf(path):
            model = open_gguf(path)
            config, stored = model.config, model.tensors
            reorder = partial(undo_permutation, config)
        else:
            config, stored = _directory_config(path), list_safetensors(path)
        wanted = _wanted(config, stored, path)
        tensors = _read(wanted, reorder, progress or _no_progress)
    num_parameters = sum(values.size for values in tensors.values())
    return LoadedModel(config, tensors, num_parameters, _stored_types(wanted))


def _is_gguf(path: Path) -> bool:
    if path.is_dir():
        return False
    if not path.exists():
        raise ModelLoadError(f"{path}: no such file or directory")
    if path.suffix.lower() != ".gguf":
        raise ModelLoadError(
            f"{path}: expected a directory with {CONFIG_FILE}, or a file that ends in .gguf"
        )
    return True


def _directory_config(directory: Path) -> ModelConfig:
    path = directory / CONFIG_FILE
    if not path.is_file():
        found = sorted(directory.glob("*.gguf"))
        hint = f"; it holds {found[0].name}: give that file" if found else ""
        raise ModelLoadError(f"{directory}: {CONFIG_FILE} is missing{hint}")
    generation_path = directory / GENERATION_CONFIG_FILE
    generation = read_json(generation_path) if generation_path.is_file() else None
    return from_hf(read_json(path), generation, source=str(path), name=directory.resolve().name)


def _wanted(config: ModelConfig, stored: Iterable[StoredTensor], path: Path) -> list[StoredTensor]:
    """The network's tensors, in its order; ModelLoadError names one missing, left over, or of
    another shape."""
    by_name = {tensor.name: tensor for tensor in stored}
    wanted = []
    for name, shape in tensor_shapes(config).items():
        tensor = by_name.pop(name, None)
        if tensor is None:
            raise ModelLoadError(f"{path}: tensor {name!r} is missing")
        if tensor.shape != shape:
            raise ModelLoadError(
                f"{tensor.path}: tensor {tensor.stored_name!r} has the shape "
                f"{list(tensor.shape)}, the configuration asks for {list(shape)}"
            )
        wanted.append(tensor)
    if config.tie_word_embeddings:
        by_name.pop(LM_HEAD, None)  # A copy of the embedding that some writers keep.
    left_over = [tensor for name, tensor in by_name.items() if not is_computed(name)]
    if left_over:
        raise ModelLoadError(
            f"{left_over[0].path}: tensor {left_over[0].stored_name!r} belongs to nothing in the "
            f"configuration ({len(left_over)} such)"
        )
    return wanted


def _read(wanted: list[StoredTensor], reorder: Reorder, progress: Progress) -> dict[str, Floats]:
    total = sum(tensor.num_bytes for tensor in wanted)
    done = 0
    tensors: dict[str, Floats] = {}
    for path in dict.fromkeys(tensor.path for tensor in wanted):
        with path.open("rb") as file:
            for tensor in (each for each in wanted if each.path == path):
                values = read_as_float32(file, tensor)
                tensors[tensor.name] = reorder(tensor.name, values)
                done += tensor.num_bytes
                progress(done, total)
    return tensors


def _as_it_is(name: str, values: Floats) -> Floats:
    return values


def _no_progress(done: int, total: int) -> None:
    pass


def _stored_types(stored: list[StoredTensor]) -> tuple[str, ...]:
    num_bytes: dict[str, int] = {}
    for tensor in stored:
        num_bytes[tensor.type] = num_bytes.get(tensor.type, 0) + tensor.num_bytes
    return tuple(sorted(num_bytes, key=lambda kind: (-num_bytes[kind], kind)))
