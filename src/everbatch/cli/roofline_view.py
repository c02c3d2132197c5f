"""Shows estimates of step times, and the known models and devices, to people.

Belongs here: what stands where, units, wording. Not here: computing (costs).
"""

from rich.console import Console
from rich.table import Table

from everbatch.cli.run_view import make_console
from everbatch.costs.device import Device
from everbatch.costs.estimate import Answer, Estimate
from everbatch.costs.model import Model
from everbatch.costs.roofline import RooflineOptions
from everbatch.costs.terms import Term

PIPE_WIDTH = 120
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def print_estimate(estimate: Estimate, console: Console | None = None) -> None:
    """Print model, device and every step."""
    console = console or _make_console()
    title = f"{estimate.model.name or 'the model'} on {estimate.device.name or 'the device'}"
    options = estimate.options
    if options is None:
        console.print(f"{title}, nominal: weights and linear work only, at stated rates\n")
    else:
        devices = options.tensor_parallel_size
        shared = f" × {devices:,}, figures of one device" if devices > 1 else ""
        console.print(f"{title}{shared}\n")
    console.print(_sizes(estimate))
    if options is None:
        console.print()
        console.print(_nominal_steps(estimate.answers))
        console.print(
            "\nLeft out: attention, KV reads and writes, copied and swapped blocks, other devices, "
            "the host, efficiency. Without --nominal they are told, a line each.",
            soft_wrap=True,
        )
    else:
        for answer in estimate.answers:
            console.print()
            _print_terms(answer, console)
        console.print(f"\n{_assumptions(options)}", soft_wrap=True)
    _print_difference(estimate.answers, console)


def print_known(models: list[Model], devices: list[Device], console: Console | None = None) -> None:
    """Print the models and devices that come with everbatch, each with its source."""
    console = console or _make_console()
    table = _table("model", "parameters", "weights", "KV/token")
    table.add_column("source")
    for model in models:
        table.add_row(
            model.name,
            f"{model.num_params or 0:,.0f}",
            si(model.weight_bytes, "B"),
            f"{model.kv_bytes_per_token or 0:,.0f} B",
            model.source,
        )
    console.print(table)
    table = _table("device", "TFLOP/s", "in fp8", "memory", "GB/s", "link", "PCIe")
    by_source: dict[str, list[str]] = {}
    for device in devices:
        by_source.setdefault(device.source, []).append(device.name)
        table.add_row(
            device.name,
            _in(device.flops, 1e12),
            _in(device.flops_fp8, 1e12),
            si(device.memory, "B"),
            _in(device.memory_bandwidth, 1e9),
            _in(device.link_bandwidth, 1e9),
            _in(device.pcie_bandwidth, 1e9),
        )
    console.print()
    console.print(table)
    console.print(
        "\nRates are dense: figures with sparsity are twice as high. Links: GB/s, one direction.\n",
        soft_wrap=True,
    )
    for source, names in by_source.items():
        console.print(f"{', '.join(names)}: {source}", soft_wrap=True)
    console.print(
        "\nYour own: --model config.json or FILE.toml, --hardware FILE.toml.", soft_wrap=True
    )


def _in(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:,.6g}"


def _make_console() -> Console:
    """Give a console that is wide enough for whole figures where nobody looks (a pipe, a file)."""
    console = make_console()
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    return console


def si(value: float | None, unit: str) -> str:
    """Write a quantity with three digits: "16.0 GB"; nothing for none."""
    if value is None:
        return ""
    for factor, prefix in _PREFIXES:
        if value >= 0.9995 * factor:
            return f"{_three_digits(value / factor)} {prefix}{unit}"
    return f"{value:,.0f} {unit}"


def flop(value: float | None, unit: str = "FLOP") -> str:
    """Write work or its rate with three digits at most: "48 GFLOP", "8.24 TFLOP"."""
    number, _, unit = si(value, unit).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}".strip()


def milliseconds(seconds: float) -> str:
    """Write a duration: "8.33 ms", and with two digits where it is short, "0.049 ms"."""
    ms = 1e3 * seconds
    if not ms:
        return "0 ms"
    if ms >= 0.1:
        return f"{_three_digits(ms)} ms"
    # Two digits that count, written out.
    exponent = int(f"{ms:.1e}".partition("e")[2])
    return f"{ms:.{1 - exponent}f} ms"


def _three_digits(value: float) -> str:
    places = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{places}f}"


def _sizes(estimate: Estimate) -> Table:
    model, device = estimate.model, estimate.device
    table = Table.grid(padding=(0, 2))
    table.add_row(
        "weights",
        si(model.weight_bytes, "B"),
        f"{model.num_params or 0:,.0f} parameters of {model.bytes_per_value or 0:g} bytes",
    )
    if model.kv_bytes_per_token is not None:
        table.add_row("KV cache", f"{model.kv_bytes_per_token:,.0f} B/token", _room(estimate))
    table.add_row("linear work", flop(model.flops_per_token, "FLOP/token"))
    table.add_row("memory bandwidth", si(device.memory_bandwidth, "B/s"))
    table.add_row("computing", flop(device.flops, "FLOP/s"))
    return table


def _room(estimate: Estimate) -> str:
    """Say how many tokens the memory holds beside the weights, at most."""
    model, options = estimate.model, estimate.options
    tp = 1 if options is None else options.tensor_parallel_size
    if estimate.device.memory is None or model.weight_bytes is None:
        return ""
    free = tp * estimate.device.memory - model.weight_bytes
    if free <= 0:
        return f"the weights do not fit {'' if tp == 1 else f'{tp:,} × '}" + si(
            estimate.device.memory, "B"
        )
    # Devices that share a KV head keep it once each.
    kept = tp / min(tp, model.num_kv_heads or tp)
    num_tokens = free / (kept * (model.kv_bytes_per_token or 1.0))
    return f"at most {num_tokens:,.0f} tokens beside the weights"


def _nominal_steps(answers: list[Answer]) -> Table:
    table = _table("step", "tokens", "work", "compute", "memory", "estimate", "limited by")
    for answer in answers:
        (term,) = answer.terms
        table.add_row(
            answer.name,
            f"{answer.work.num_tokens:,}",
            flop(term.flops),
            milliseconds(term.compute_s),
            milliseconds(term.transfer_s),
            milliseconds(answer.duration_s),
            f"{term.bound}-limited",
        )
    return table


def _print_terms(answer: Answer, console: Console) -> None:
    context = ""
    if answer.work.num_decodes:
        context = f" at {answer.work.decode_context // answer.work.num_decodes:,} tokens"
    console.print(f"{answer.name}{context}: {milliseconds(answer.duration_s)}")
    table = _table("term", "bytes", "work", "takes", "limited by", "nominal model")
    for term in answer.terms:
        table.add_row(*_cells(term))
    table.add_row(
        "sum", "", "", milliseconds(answer.duration_s), "", milliseconds(answer.nominal_s)
    )
    console.print(table)


def _cells(term: Term) -> tuple[str, ...]:
    is_nothing = not term.seconds
    return (
        term.name,
        si(term.bytes, "B") if term.bytes else "",
        flop(term.flops) if term.flops else "",
        milliseconds(term.seconds),
        "" if is_nothing else term.bound,
        "counts it" if term.in_nominal else "leaves it out",
    )


def _assumptions(options: RooflineOptions) -> str:
    return (
        f"Assumed: {_percent(options.memory_efficiency)} of the memory bandwidth, "
        f"{_percent(options.compute_efficiency)} of the FLOP rate and "
        f"{_percent(options.link_efficiency)} of the links are reached; the host takes "
        f"{1e6 * options.host_s_per_step:,.0f} us a step and "
        f"{1e6 * options.host_s_per_sequence:,.0f} us a request. The nominal model takes one "
        "device at stated rates, and multiplies the output head for every token."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _print_difference(answers: list[Answer], console: Console) -> None:
    """Say what a prompt does to those who decode beside it."""
    if len(answers) == 2:
        alone, mixed = answers
        ratio = mixed.duration_s / alone.duration_s
        console.print(
            f"\nWith the prompt the step takes {ratio:,.2f} times as long: who decodes waits "
            f"{milliseconds(mixed.duration_s - alone.duration_s)} more for the next token.",
            soft_wrap=True,
        )


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
