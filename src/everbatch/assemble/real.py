"""Where the real world is put together: model executor, wall clock, engine, event log.

The only place that meets them all. Called by llm and by the command line.
"""

from collections.abc import Callable
from dataclasses import dataclass
from os import sysconf
from pathlib import Path

from everbatch.assemble.event_log import EventLogFile
from everbatch.assemble.model_source import resolve_model
from everbatch.assemble.options import EngineOptions, ResolvedOptions, scheduler_config
from everbatch.assemble.wallclock import WallClock
from everbatch.engine.engine import Engine
from everbatch.executors.model.executor import ModelExecutor
from everbatch.kernels.kv_storage import bytes_per_block
from everbatch.kernels.reference import ReferenceKernels
from everbatch.models.llama import LlamaForCausalLM, network_shape
from everbatch.models.weights import LoadedModel, load_model
from everbatch.tokenizer.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how much of how much is done."""

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class RealEngine:
    """An engine over a real model, ready to step, and what goes with it."""

    engine: Engine
    tokenizer: Tokenizer
    vocab_size: int
    """Token ids that the network knows; the tokenizer's may be fewer."""
    options: ResolvedOptions
    clock: WallClock
    event_log: EventLogFile | None

    def close(self) -> None:
        """Write what is left of the event log."""
        if self.event_log is not None:
            self.event_log.close()


def build_engine(options: EngineOptions, progress: Progress | None = None) -> RealEngine:
    """Find and load the model and put an engine around it.

    Raises ConfigError, ModelLoadError or EventLogError before anything is served.
    """
    tell = progress or _silence
    found = resolve_model(options.model, progress=tell)
    tokenizer = Tokenizer.from_path(found.path)
    loaded = load_model(found.path, lambda done, total: tell("loading weights", done, total))
    shape = network_shape(loaded.config)
    block_bytes = bytes_per_block(shape, options.block_size) if options.block_size > 0 else 0
    config = scheduler_config(options, loaded.config.max_model_len, block_bytes, _free_bytes())
    eos_token_ids = _eos_token_ids(loaded, tokenizer)
    resolved = ResolvedOptions(
        model_path=str(found.path),
        model_name=found.name,
        dtype="float32",
        num_parameters=loaded.num_parameters,
        model_bytes=loaded.num_parameters * FLOAT32_BYTES,
        kv_cache_bytes=config.num_blocks * block_bytes,
        kv_bytes_per_block=block_bytes,
        scheduler=config,
        seed=options.seed,
    )
    clock = WallClock()
    # Opened before the weights are packed: a path that cannot be written is known at once.
    event_log = _open_log(options.event_log, resolved, clock)
    network = LlamaForCausalLM(loaded.config, loaded.tensors, ReferenceKernels)
    executor = ModelExecutor(network, config, eos_token_ids, options.seed)
    sink = event_log.write if event_log is not None else None
    engine = Engine(config, executor, clock, sink)
    return RealEngine(engine, tokenizer, loaded.config.vocab_size, resolved, clock, event_log)


def _open_log(
    path: Path | None, resolved: ResolvedOptions, clock: WallClock
) -> EventLogFile | None:
    return EventLogFile(path, resolved.header(), clock) if path is not None else None


def _eos_token_ids(loaded: LoadedModel, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Give the ids that end a text: the model's and the tokenizer's, each once, in order."""
    ids = (*loaded.config.eos_token_ids, *tokenizer.eos_token_ids)
    return tuple(dict.fromkeys(ids))


def _free_bytes() -> int:
    """Give the memory that can be had without swapping: MemAvailable, or free pages."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE")
    facts = dict(line.split(":", 1) for line in lines)
    return int(facts["MemAvailable"].split()[0]) * 1024


def _silence(_what: str, _done: int, _total: int) -> None:
    pass
