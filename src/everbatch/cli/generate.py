"""`everbatch generate`: a file of prompts in, JSON Lines out, without a server.

Belongs here: flags, writing answers, the progress bar. Not here: reading prompts (prompts.py).
Answers are written as they end, so an interrupted run keeps what it has; "index" says which prompt
each belongs to.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from everbatch.base.errors import ConfigError, EverbatchError
from everbatch.cli.loading import loading_bar
from everbatch.cli.options import engine_options, pop_engine_options
from everbatch.cli.prompts import Task, naming_line, read_tasks
from everbatch.cli.sections import SectionedCommand
from everbatch.engine.token_checks import check_priority

if TYPE_CHECKING:
    from everbatch.llm import LLM, CompletionOutput, RequestOutput

EXIT_INCOMPLETE = 1
EXIT_INTERRUPTED = 130


@click.command("generate", cls=SectionedCommand)
@engine_options
@click.option(
    "--prompts",
    "prompts_path",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    help='One prompt a line: plain text, or a JSON object with "prompt", "prompt_token_ids" or '
    '"messages", sampling options by name, an "id", "priority", "tenant". "-": standard input.',
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write. Default: standard output.",
)
@click.option("--n", type=int, default=1, show_default=True, help="Samples of each prompt.")
@click.option("--max-tokens", type=int, help="Most tokens of an answer. Default: what fits.")
@click.option("--temperature", type=float, default=1.0, show_default=True, help="0: greedy.")
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--top-k", type=int, default=0, show_default=True, help="0: off.")
@click.option("--stop", multiple=True, help="Text that ends an answer; may be repeated.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the end-of-sequence token.")
def command(prompts_path: str, output: Path | None, **given: Any) -> None:
    """Answer every prompt of a file with MODEL (without: the default model).

    Writes one JSON object an answer, in the order in which prompts end: index (0 for the first
    prompt), id (if given), sample (if n > 1), prompt, text, finish_reason, stop_reason,
    prompt_tokens, completion_tokens. An "error" says why an answer is not whole; the exit status is
    then 1.
    """
    options = pop_engine_options(given)
    _check_places(prompts_path, output)
    tasks = read_tasks(prompts_path, given)
    _check_priorities(tasks, options.policy)
    by_name = {item.name: getattr(options, item.name) for item in fields(options)}
    console = Console(stderr=True)
    with _opened(output) as file:
        from everbatch.llm import LLM

        with loading_bar(console) as tell:
            llm = LLM(progress=tell, **by_name)
        with closing(llm):
            prompts = [_encoded(llm, task) for task in tasks]
            _empty(file)
            writer = _AnswerWriter(file, tasks)
            try:
                with _answers_bar(console, len(tasks), writer):
                    llm.generate(
                        prompts,
                        [task.params for task in tasks],
                        priority=[task.priority for task in tasks],
                        tenant=[task.tenant for task in tasks],
                        on_finished=writer.write,
                    )
            except KeyboardInterrupt:
                told = f"interrupted: {writer.num_written} of {len(tasks)} prompts are answered"
                click.echo(f"everbatch: {told}", err=True)
                sys.exit(EXIT_INTERRUPTED)
    if writer.num_failed:
        click.echo(f"everbatch: {writer.num_failed} of {len(tasks)} answers failed", err=True)
        sys.exit(EXIT_INCOMPLETE)


class _AnswerWriter:
    """Writes the answers of each prompt as it ends, and counts prompts."""

    def __init__(self, file: FileIO, tasks: list[Task]) -> None:
        self._file = file
        self._tasks = tasks
        self.num_written = 0
        self.num_failed = 0
        self.on_written: Callable[[], None] = lambda: None

    def write(self, index: int, answer: "RequestOutput") -> None:
        rest = memoryview(_lines(index, answer, self._tasks[index]))
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise EverbatchError(
                f"cannot write answers any more ({error.strerror}): "
                f"{self.num_written} of {len(self._tasks)} are written"
            ) from error
        self.num_written += 1
        self.num_failed += any(completion.error is not None for completion in answer.outputs)
        self.on_written()


def _check_places(prompts_path: str, output: Path | None) -> None:
    """Refuse to write the answers over the prompts."""
    with suppress(OSError):
        if output is not None and os.path.samefile(prompts_path, output):
            raise ConfigError(
                f"--output {output} is the file of --prompts, and would be overwritten: give "
                "another file"
            )


def _check_priorities(tasks: list[Task], policy: str) -> None:
    """Refuse priorities that nobody would look at, before a model is loaded."""
    for task in tasks:
        with naming_line(task.number):
            check_priority(task.priority, policy, "use --policy priority")


def _encoded(llm: "LLM", task: Task) -> list[int]:
    """Give the token ids of a prompt that can run, or say which line cannot."""
    with naming_line(task.number):
        if task.messages is not None:
            return llm.check(llm.encode_chat(task.messages), task.params)
        assert task.prompt is not None
        return llm.check(task.prompt, task.params)


def _lines(index: int, answer: "RequestOutput", task: Task) -> bytes:
    lines = [answer_facts(index, answer, one, task) for one in answer.outputs]
    return b"".join(msgspec.json.encode(facts) + b"\n" for facts in lines)


def answer_facts(
    index: int, answer: "RequestOutput", completion: "CompletionOutput", task: Task
) -> dict[str, object]:
    """Give the fields of one answer, as docs/command-line.md tells them."""
    facts: dict[str, object] = {"index": index}
    if task.id is not None:
        facts["id"] = task.id
    if len(answer.outputs) > 1:
        facts["sample"] = completion.index
    facts |= {
        "prompt": task.prompt if task.messages is None else task.messages,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "prompt_tokens": len(answer.prompt_token_ids),
        "completion_tokens": len(completion.token_ids),
    }
    if completion.logprobs is not None:
        facts["logprobs"] = completion.logprobs
    if completion.error is not None:
        facts["error"] = completion.error
    return facts


def _opened(path: Path | None) -> FileIO:
    """Open the output before the model is loaded; what it holds stays until answers come.

    Nothing is buffered: a line is written when its answer ends, and closing cannot fail.
    """
    if path is None:
        return FileIO(sys.stdout.fileno(), "wb", closefd=False)
    try:
        return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb")
    except OSError as error:
        raise EverbatchError(f"cannot write {path} ({error.strerror}): check --output") from error


def _empty(file: FileIO) -> None:
    """Drop what a file held before; a pipe or a terminal holds nothing, and standard output is
    the shell's to empty."""
    descriptor = file.fileno()
    if descriptor != sys.stdout.fileno() and stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.ftruncate(descriptor, 0)


@contextmanager
def _answers_bar(console: Console, total: int, writer: _AnswerWriter) -> Iterator[None]:
    """Show how many answers are written, where somebody looks and work is long."""
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = console.is_terminal and total > 1
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("answers", total=total)
        writer.on_written = lambda: bar.advance(task)
        yield
