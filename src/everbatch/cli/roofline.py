"""`everbatch roofline`: how long a step takes on a device, term by term, from data sheets.

Belongs here: which steps are asked about, and what is told as JSON. Not here: the flags
(roofline_options), the models of step time (costs), drawing (roofline_view). No model is loaded and
nothing is measured.
"""

import json
from dataclasses import asdict, fields
from typing import Any

import click

from everbatch.base.errors import ConfigError
from everbatch.cli.roofline_options import roofline_options, sizes_given
from everbatch.cli.sections import SectionedCommand
from everbatch.costs.device import DEVICE_SIZES, Device, find_device, known_devices
from everbatch.costs.estimate import Estimate, estimate_steps
from everbatch.costs.model import MODEL_SIZES, Model, find_model, known_models
from everbatch.costs.roofline import RooflineOptions
from everbatch.costs.work import StepWork


@click.command("roofline", cls=SectionedCommand)
@click.option("--model", "model_name", help="A known model, a config.json, or FILE.toml.")
@click.option("--hardware", "device_name", help="A known device, or FILE.toml.")
@click.option("--nominal", is_flag=True, help="Weights and linear work only, at stated rates.")
@click.option("--list", "is_list", is_flag=True, help="List the known models and devices.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@roofline_options
def command(
    model_name: str | None,
    device_name: str | None,
    nominal: bool,
    is_list: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Say how long a step takes on a device, term by term, and what limits it.

    Of a step with prompts and decodes, the decodes alone are told too. Sizes given beside a name
    replace the name's; a model or a device may be described by sizes alone.
    """
    if is_list:
        _list(as_json)
        return
    model = _read_model(model_name, sizes_given(given, MODEL_SIZES))
    device = _read_device(device_name, sizes_given(given, DEVICE_SIZES))
    options = RooflineOptions(
        **{field.name: given[field.name] for field in fields(RooflineOptions)}
    )
    if nominal:
        _refuse_ignored(options)
    estimate = estimate_steps(device, model, None if nominal else options, _steps(given))
    if as_json:
        click.echo(json.dumps(_facts(estimate), indent=2))
        return
    # rich is imported for a table only.
    from everbatch.cli.roofline_view import print_estimate

    print_estimate(estimate)


def _refuse_ignored(options: RooflineOptions) -> None:
    """Refuse what the nominal model would not look at, if it is another than by default."""
    names = (field.name for field in fields(RooflineOptions))
    given = [name for name in names if getattr(options, name) != getattr(RooflineOptions(), name)]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"--nominal is without {flags}: drop that, or --nominal")


def _read_model(name: str | None, sizes: dict[str, float]) -> Model:
    if name is None and not sizes:
        raise _nothing_given("--model")
    model = Model() if name is None else find_model(name)
    return model.with_sizes(sizes)


def _read_device(name: str | None, sizes: dict[str, float]) -> Device:
    if name is None and not sizes:
        raise _nothing_given("--hardware")
    device = Device() if name is None else find_device(name)
    return device.with_sizes(sizes)


def _nothing_given(flag: str) -> ConfigError:
    return ConfigError(
        f"give {flag}, a name or a file, or its sizes one by one: `everbatch roofline --list` "
        "shows the names, `everbatch roofline --help` the sizes"
    )


def _steps(given: dict[str, Any]) -> dict[str, StepWork]:
    """Give the step that was asked about and, where it is mixed, its decodes alone; by name."""
    prefills, num_decodes = given["prefills"], given["num_decodes"]
    if num_decodes is None:
        num_decodes = 0 if prefills else 1
    if not num_decodes and not prefills:
        raise ConfigError("a step has a token at least: give --decode or --prefill")
    decodes = "1 decode" if num_decodes == 1 else f"{num_decodes:,} decodes"
    prompts = " + ".join(f"{count:,}" for count in prefills)
    steps: dict[str, StepWork] = {}
    if num_decodes:
        steps[decodes] = _work(num_decodes, given["context"])
    if prefills:
        work = _work(num_decodes, given["context"])
        for count in prefills:
            work.add_chunk(given["prefill_start"], count)
        work.num_logits += len(prefills)
        steps[f"{prompts} of prompt{f' + {decodes}' if num_decodes else ''}"] = work
    last = list(steps.values())[-1]
    last.swapped_blocks = given["swapped_blocks"]
    last.copied_blocks = given["copied_blocks"]
    return steps


def _work(num_decodes: int, context: int) -> StepWork:
    return StepWork(num_decodes, decode_context=num_decodes * context, num_logits=num_decodes)


def _facts(estimate: Estimate) -> dict[str, Any]:
    """Give the estimate for programs: seconds, bytes, FLOPs."""
    return {
        "kind": "nominal" if estimate.options is None else "roofline",
        "model": {**asdict(estimate.model), **_derived(estimate.model)},
        "hardware": asdict(estimate.device),
        "options": None if estimate.options is None else asdict(estimate.options),
        "steps": [
            {
                "name": answer.name,
                "tokens": answer.work.num_tokens,
                "flops": sum(term.flops for term in answer.terms),
                "duration_s": answer.duration_s,
                "nominal_s": answer.nominal_s,
                "bound": answer.bound,
                "terms": [
                    {**asdict(term), "seconds": term.seconds, "bound": term.bound}
                    for term in answer.terms
                ],
                "work": asdict(answer.work),
            }
            for answer in estimate.answers
        ],
    }


def _derived(model: Model) -> dict[str, float | None]:
    return {
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "flops_per_token": model.flops_per_token,
    }


def _list(as_json: bool) -> None:
    models, devices = known_models(), known_devices()
    if as_json:
        told = {
            "models": [{**asdict(model), **_derived(model)} for model in models],
            "hardware": [asdict(device) for device in devices],
        }
        click.echo(json.dumps(told, indent=2))
        return
    from everbatch.cli.roofline_view import print_known

    print_known(models, devices)
