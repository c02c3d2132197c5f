"""`everbatch explain`: why did my request wait? From an event log, or from a running server.

Belongs here: getting hold of a log's lines, printing, exit status. Not here: what the lines mean
(diagnose). Exit status 1: the log is broken somewhere; what comes before is explained all the same.
"""

import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everbatch import __version__
from everbatch.base.errors import ConfigError, EventLogError, EverbatchError
from everbatch.base.units import counted
from everbatch.cli.folded import echo_folded
from everbatch.cli.server_url import base_url, is_server
from everbatch.diagnose.explain import Explanation, explain
from everbatch.diagnose.life import Life
from everbatch.diagnose.log import Ruler
from everbatch.diagnose.overview import NO_END, Overview, Ranking, Totals, overview
from everbatch.diagnose.sentences import Row, Teller

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

EXIT_DAMAGED = 1
STANDARD_INPUT = "-"
EVENTS_PATH = "/debug/events"
FETCH_TIMEOUT_S = 30.0
DEFAULT_WORST = 3
NARROW = 72
"""On a terminal of fewer columns the text of a row stands under its steps, not beside them."""
WHEN_WIDTH = 18
LENGTH_WIDTH = 10


@click.command("explain")
@click.argument("source", metavar="LOG|URL")
@click.argument("request", required=False)
@click.option(
    "--worst",
    type=click.IntRange(1, 1_000_000),
    help="Name so many requests worth asking about: longest waits, most preempted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--api-key",
    envvar="EVERBATCH_API_KEY",
    help="Sent to a server as a bearer token, if given.",
)
@click.pass_context
def command(
    context: click.Context,
    source: str,
    request: str | None,
    worst: int | None,
    as_json: bool,
    api_key: str | None,
) -> None:
    """Tell the life of REQUEST from an event log, or from the server at URL (or host:port).

    REQUEST is the id of an answer, or what its client sent as X-Request-Id. Of a request with
    several samples "ID" tells all of them, "ID/0" one. Without REQUEST: an overview of the log. LOG
    may be - for standard input.
    """
    if request is not None and worst is not None:
        raise ConfigError("--worst names requests; leave out either it or the request")
    explanation, found = None, None
    with _lines(source, api_key) as lines, _naming(source):
        if request is not None:
            explanation = explain(lines, request)
        else:
            found = overview(lines)
    if explanation is not None:
        damage, torn = explanation.damage, explanation.torn_line
        _show(source, explanation, as_json)
    else:
        assert found is not None and found.log is not None
        damage, torn = found.log.damage, found.log.torn_line
        _show_overview(source, found, worst, as_json)
    if torn is not None:
        _tell(f"{source}: line {torn:,} is torn, as a process that is killed leaves it: not read")
    if damage is not None:
        _tell(f"{source}: {damage}; the events before it are explained")
        context.exit(EXIT_DAMAGED)


@contextmanager
def _lines(source: str, api_key: str | None) -> Iterator[Iterable[str]]:
    """Open a log: a file, standard input, or the last events of a server."""
    if is_server(source):
        yield StringIO(_fetch(source, api_key))
        return
    if source == STANDARD_INPUT:
        yield sys.stdin
        return
    try:
        with Path(source).open(encoding="utf-8", errors="replace", newline="\n") as file:
            yield file
    except OSError as error:
        raise ConfigError(
            f"cannot read the log {source} ({error.strerror}): give the file of --event-log or "
            "--events, or a server's URL"
        ) from error


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Put the log's name before what is wrong with it."""
    try:
        yield
    except EventLogError as error:
        raise EventLogError(f"{source}: {error}") from error


def _fetch(url: str, api_key: str | None) -> str:
    import httpx

    base = base_url(url).removesuffix(EVENTS_PATH)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        answer = httpx.get(base + EVENTS_PATH, headers=headers, timeout=FETCH_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise EverbatchError(
            f"no server answers at {url} ({error}): start one with `everbatch serve`, or give the "
            "file of its --event-log"
        ) from error
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise EverbatchError(f"{base} wants an API key: give one of its keys with --api-key")
    if answer.status_code == httpx.codes.FORBIDDEN:
        raise EverbatchError(f"{base} does not show its events to a tenant's key: give another one")
    if answer.status_code != httpx.codes.OK:
        raise EverbatchError(
            f"{base}{EVENTS_PATH} answered {answer.status_code}: is this a server of everbatch?"
        )
    return answer.text


# One request


def _show(source: str, explanation: Explanation, as_json: bool) -> None:
    if as_json:
        _print_json(source, explanation.facts())
        return
    teller = Teller(explanation.config, Ruler(explanation.is_steps))
    blocks = [_notes(explanation)] if _notes(explanation) else []
    printer = _print_rich if sys.stdout.isatty() else _print_plain
    for line in blocks:
        click.echo(line)
    for number, life in enumerate(explanation.lives):
        if number:
            click.echo()
        printer(teller, life)


def _notes(explanation: Explanation) -> str:
    notes = []
    if explanation.num_dropped:
        dropped = counted(explanation.num_dropped, "event")
        notes.append(
            f"not here are the first {dropped}: of what was admitted before nothing is known "
            "(--event-log keeps all, in older files perhaps)"
        )
    if explanation.lives[0].num_namesakes:
        earlier = counted(explanation.lives[0].num_namesakes, "request")
        notes.append(f"{earlier} of this id came and went before; this is the last one")
    return "\n".join(notes)


def _print_plain(teller: Teller, life: Life) -> None:
    click.echo(teller.heading(life) + "\n")
    rows = teller.rows(life)
    when = max(WHEN_WIDTH, *(len(row.when) for row in rows))
    length = max(LENGTH_WIDTH, *(len(row.length) for row in rows))
    for row in rows:
        for line in _row_lines(row, when, length):
            click.echo(line)
    facts = teller.summary(life)
    if not facts:
        return
    width = max(len(name) for name, _ in facts)
    click.echo()
    for name, told in facts:
        click.echo(f"  {name.ljust(width)}  {told}")


def _row_lines(row: Row, when: int, length: int) -> Iterator[str]:
    yield f"  {row.when.ljust(when)}  {row.length.ljust(length)}  {row.text}"
    for detail in row.details:
        yield f"  {' ' * (when + length + 4)}{detail}"


def _print_rich(teller: Teller, life: Life) -> None:
    # rich is imported for a terminal only.
    from rich.table import Table
    from rich.text import Text

    from everbatch.cli.run_view import make_console

    console = make_console()
    console.print(Text(teller.heading(life), style="bold"))
    rows = teller.rows(life)
    console.print(_stacked(rows) if console.width < NARROW else _side_by_side(rows))
    facts = Table.grid(padding=(0, 2))
    for name, figure in teller.summary(life):
        facts.add_row(Text(name, style="dim"), figure)
    console.print()
    console.print(facts)


def _side_by_side(rows: list[Row]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(Text(row.when), Text(row.length), _told(row))
    return table


def _stacked(rows: list[Row]) -> "Group":
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    for row in rows:
        if row.when:
            parts.append(Text(f"{row.when}  {row.length}".rstrip(), style="dim"))
        parts.append(Padding(_told(row), (0, 0, 0, 2)))
    return Group(*parts)


def _told(row: Row) -> "Text":
    from rich.text import Text

    told = Text(row.text)
    for detail in row.details:
        told.append(f"\n  {detail}", style="dim")
    return told


# A whole log


def _show_overview(source: str, found: Overview, worst: int | None, as_json: bool) -> None:
    rankings = found.worst(worst or DEFAULT_WORST)
    if as_json:
        _print_json(source, _overview_facts(found, rankings))
        return
    teller = Teller(found.header["config"], found.ruler)
    if worst is None:
        for line in _overview_lines(source, found):
            echo_folded(line)
    names = [name for name, ranked in rankings.items() if ranked]
    if not names:
        click.echo("nobody waited and nobody was preempted")
    for name in names:
        click.echo(f"{name}:")
        width = max(len(totals.id) for totals in rankings[name])
        for totals in rankings[name]:
            figure = _ranked_by(name, teller, found, totals)
            echo_folded(f"  {totals.id.ljust(width)}  {figure}, {totals.end or NO_END}")
    asked = next((rankings[name][0].id for name in names), next(iter(found.totals), None))
    if asked is not None:
        click.echo(f"\nask: everbatch explain {shlex.quote(source)} {shlex.quote(asked)}")


def _overview_lines(source: str, found: Overview) -> Iterator[str]:
    config, log = found.header["config"], found.log
    assert log is not None
    clock = "clock of steps" if found.ruler.is_steps else "clock of nanoseconds"
    yield f"{source}: {counted(log.num_events, 'event')}, {clock}"
    yield (
        f"  engine    {counted(config['max_num_seqs'], 'slot')}, "
        f"{counted(config['max_num_batched_tokens'], 'token')} a step, "
        f"{counted(config['num_blocks'], 'block')} of {counted(config['block_size'], 'token')}"
    )
    yield f"  steps     {found.num_steps:,}, {counted(found.num_emitted, 'output')}"
    yield f"  requests  {len(found.totals):,}: {_counts(found.ends()) or 'none'}"
    if found.rejected:
        yield f"  refused   {found.rejected.total():,}: {_counts(found.rejected)}"
    reasons = found.reasons()
    if reasons:
        yield f"  waited    {counted(reasons.total(), 'request step')}: {_counts(reasons)}"
    yield ""


def _ranked_by(ranking: Ranking, teller: Teller, found: Overview, totals: Totals) -> str:
    """Write the figure that puts a request into a ranking."""
    match ranking:
        case Ranking.WAIT:
            return f"{teller.duration(totals.wait(found.last_t))} in the queue"
        case Ranking.STEPS:
            return f"{counted(totals.steps_waited.total(), 'step')}, mostly {totals.main_reason}"
        case Ranking.PREEMPTIONS:
            return f"preempted {counted(totals.num_preemptions, 'time')}"
        case Ranking.RECOMPUTED:
            return f"{counted(totals.recomputed_tokens, 'token')} computed again"


def _overview_facts(found: Overview, rankings: dict[Ranking, list[Totals]]) -> dict[str, Any]:
    log = found.log
    assert log is not None
    return {
        "clock": "steps" if found.ruler.is_steps else "ns",
        "log": {
            "num_events": log.num_events,
            "num_dropped": log.num_dropped,
            "damage": log.damage,
            "torn_line": log.torn_line,
        },
        "num_steps": found.num_steps,
        "num_requests": len(found.totals),
        "ends": dict(found.ends()),
        "rejected": dict(found.rejected),
        "steps_waited": dict(found.reasons()),
        "worst": {
            name: [_totals_facts(found, totals) for totals in ranked]
            for name, ranked in rankings.items()
        },
    }


def _totals_facts(found: Overview, totals: Totals) -> dict[str, Any]:
    return {
        "id": totals.id,
        "queue_wait": totals.wait(found.last_t),
        "steps_waited": dict(totals.steps_waited),
        "num_preemptions": totals.num_preemptions,
        "recomputed_tokens": totals.recomputed_tokens,
        "output_tokens": totals.output_tokens,
        "end": totals.end,
    }


def _counts(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {number:,}" for name, number in ordered)


def _print_json(source: str, facts: dict[str, Any]) -> None:
    told = {"everbatch": __version__, "source": source, **facts}
    click.echo(json.dumps(told, indent=2, ensure_ascii=False))


def _tell(message: str) -> None:
    click.echo(f"everbatch: {message}", err=True)
