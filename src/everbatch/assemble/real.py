"""Where the real world is put together: model executor, wall clock, engine, event log.

The only place that meets them all. Called by llm and by the command line.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from everbatch.assemble.event_log import EventLogFile
from everbatch.assemble.interrupts import interrupts_between_steps
from everbatch.assemble.measure import measure_costs
from everbatch.assemble.memory import available_bytes
from everbatch.assemble.model_source import Progress, resolve_model
from everbatch.assemble.options import EngineOptions, scheduler_config
from everbatch.assemble.resolved import ResolvedOptions
from everbatch.assemble.wallclock import WallClock
from everbatch.base.errors import ConfigError, ModelLoadError
from everbatch.base.units import format_bytes
from everbatch.engine.engine import Engine
from everbatch.executors.model.executor import ModelExecutor
from everbatch.kernels.backends import choose_backend
from everbatch.kernels.kv_storage import bytes_per_block
from everbatch.models.llama import LlamaForCausalLM, network_shape
from everbatch.models.weights import LoadedModel, load_model
from everbatch.tokenizer.grammars import Grammars
from everbatch.tokenizer.tokenizer import Tokenizer

TOKEN_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class RealEngine:
    """An engine over a real model, ready to step, and what goes with it."""

    engine: Engine
    network: LlamaForCausalLM
    tokenizer: Tokenizer
    grammars: Grammars
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
    clock = WallClock()
    # Opened before the model is loaded: a path that cannot be written is known at once.
    event_log = (
        None
        if options.event_log is None
        else EventLogFile(options.event_log, clock, options.event_log_max_size)
    )
    try:
        return _build(options, clock, event_log, progress or _silence)
    except BaseException:  # Ctrl-C while a model is loaded, too: a log that is open is closed.
        if event_log is not None:
            event_log.close()
        raise


def _build(
    options: EngineOptions, clock: WallClock, event_log: EventLogFile | None, tell: Progress
) -> RealEngine:
    # An interrupt amid the start of a native module would end the process, or be lost.
    with interrupts_between_steps():
        backend = choose_backend(options.kernels, options.threads, pin_threads=options.pin_threads)
    found = resolve_model(options.model, progress=tell)
    tokenizer = Tokenizer.from_path(found.path)
    loaded = _load(found.path, tell)
    block_bytes = bytes_per_block(
        network_shape(loaded.config), options.block_size, backend.kv_dtype
    )
    free = available_bytes()
    config = scheduler_config(options, loaded.config.max_model_len, block_bytes, free)
    resolved = ResolvedOptions(
        model_path=str(found.path),
        model_name=found.name,
        dtype=backend.weight_dtype,
        kernels=backend.name,
        num_parameters=loaded.num_parameters,
        model_bytes=loaded.num_parameters * backend.weight_bytes,
        kv_cache_bytes=config.num_blocks * block_bytes,
        kv_bytes_per_block=block_bytes,
        model_max_len=loaded.config.max_model_len,
        scheduler=config,
        seed=options.seed,
    )
    try:
        network = LlamaForCausalLM(loaded.config, loaded.tensors, backend.build)
        workspace = network.max_workspace_bytes(config.max_num_batched_tokens, config.context_limit)
        resolved = replace(resolved, max_workspace_bytes=workspace)
        if config.preemption_mode == "auto":
            costs = measure_costs(network, config.block_size, clock)
            config = replace(config, preemption_costs=costs)
            resolved = replace(resolved, scheduler=config)
        eos_token_ids = _eos_token_ids(loaded, tokenizer)
        grammars = Grammars(tokenizer, loaded.config.vocab_size, eos_token_ids)
        executor = ModelExecutor(network, config, eos_token_ids, options.seed, grammars.start)
    except MemoryError as error:
        raise ConfigError(_no_room(resolved, free)) from error
    sink = None
    if event_log is not None:
        event_log.begin(resolved.header())
        sink = event_log.write
    engine = Engine(config, executor, clock, sink)
    return RealEngine(
        engine, network, tokenizer, grammars, loaded.config.vocab_size, resolved, clock, event_log
    )


def _load(path: Path, tell: Progress) -> LoadedModel:
    try:
        return load_model(path, lambda done, total: tell("loading weights", done, total))
    except MemoryError as error:
        raise ModelLoadError(
            f"{path} does not fit into memory as float32 ({format_bytes(available_bytes())} are "
            "free): take a smaller model, or free memory"
        ) from error


def _no_room(resolved: ResolvedOptions, free_bytes: int) -> str:
    config = resolved.scheduler
    tables = config.max_num_seqs * config.context_limit * TOKEN_ID_BYTES
    return (
        f"the {format_bytes(free_bytes)} of memory that are free do not hold the KV cache of "
        f"{format_bytes(resolved.kv_cache_bytes)}, a host tier of "
        f"{format_bytes(config.num_host_blocks * resolved.kv_bytes_per_block)} and "
        f"{format_bytes(tables)} for the token ids of {config.max_num_seqs:,} requests: lower "
        "--kv-cache-memory, --host-cache-memory, --max-num-seqs or --max-model-len"
    )


def _eos_token_ids(loaded: LoadedModel, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Give the ids that end a text: the model's and the tokenizer's, each once, in order."""
    ids = (*loaded.config.eos_token_ids, *tokenizer.eos_token_ids)
    return tuple(dict.fromkeys(ids))


def _silence(_what: str, _done: int, _total: int) -> None:
    pass
