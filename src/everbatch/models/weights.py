"""Loads a model's configuration and weights from a directory or a GGUF file.

Belongs here: which files make a model, and that every tensor of the network is there exactly once
with its shape. Not here: the formats (safetensors_files.py, gguf_file.py), the hub, the tokenizer.
Called by assemble.

Covered: a directory with config.json and safetensors, a .gguf file; float32 in memory whatever the
file has. Not covered: split GGUF, other formats; each is refused by name.
"""

from collections.abc import Callable, Iterable, Mapping
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
from everbatch.models.llama import TensorProblems, compare_tensors, tensor_shapes
from everbatch.models.safetensors_files import list_safetensors
from everbatch.models.stored_tensor import StoredTensor, read_as_float32

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"

OnBytesRead = Callable[[int, int], None]
"""Called with the bytes of weights read so far and in all."""

Reorder = Callable[[str, Floats], Floats]
"""Called with a tensor's name and values, gives the values in Hugging Face's order."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """tensors: float32, C-contiguous, Hugging Face names, projections [out, in]; without lm_head
    where config.tie_word_embeddings. A backend that packs them empties the dict."""

    config: ModelConfig
    tensors: dict[str, Floats]
    num_parameters: int


def load_model(path: Path, progress: OnBytesRead | None = None) -> LoadedModel:
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
    return LoadedModel(config, tensors, num_parameters)


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
    shapes = {name: tensor.shape for name, tensor in by_name.items()}
    problems = compare_tensors(config, shapes)
    if problems is not None:
        raise ModelLoadError(_problem(problems, by_name, path))
    return [by_name[name] for name in tensor_shapes(config)]


def _problem(problems: TensorProblems, by_name: Mapping[str, StoredTensor], path: Path) -> str:
    """Tell the first problem, with the names that the files use."""
    if problems.missing:
        return (
            f"{path}: tensor {problems.missing[0]!r} is missing ({len(problems.missing)} such): "
            "check that all files are there, and that the configuration is this model's"
        )
    for name, shape in problems.misshapen.items():
        tensor = by_name[name]
        return (
            f"{tensor.path}: tensor {tensor.stored_name!r} has the shape {list(tensor.shape)}, "
            f"the configuration asks for {list(shape)}: check that both are of one model"
        )
    tensor = by_name[problems.left_over[0]]
    return (
        f"{tensor.path}: tensor {tensor.stored_name!r} belongs to nothing in the configuration "
        f"({len(problems.left_over)} such): check that both are of one model"
    )


def _read(wanted: list[StoredTensor], reorder: Reorder, progress: OnBytesRead) -> dict[str, Floats]:
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


def _as_it_is(_name: str, values: Floats) -> Floats:
    return values


def _no_progress(_done: int, _total: int) -> None:
    pass
