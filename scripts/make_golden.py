"""Make the golden text: what transformers answers greedily, in float32, to 50 prompts.

    python scripts/make_golden.py --model SmolLM2-135M-Instruct.Q4_1.gguf
    python scripts/make_golden.py --model SmolLM2-135M-Instruct.Q4_1.gguf --check

Needs torch 2.13.0 and transformers 5.24; the tests that read the files need neither. The first form
writes tests/golden/golden_full.json and golden_small.json (a subset): each prompt alone, with a KV
cache, eager attention, NUM_OUTPUT_TOKENS tokens whether or not an end-of-sequence token comes. The
second recomputes the files' logits another way, the recorded text in one pass without a cache, and
fails where a recorded token is not the top one. Belongs here: the choice of prompts and the
oracle. Not here: the rule of comparison, which is tests/models/golden.py.
"""

import argparse
import decimal
import hashlib
import json
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, GgufConfig

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "models"))
from golden import FORMAT_VERSION, GOLDEN_DIR, NEAR_TIE, GoldenPrompt, load, load_document  # noqa: E402

NUM_OUTPUT_TOKENS = 48
NUM_THREADS = 2
RUNNER_UP_BELOW = 1e-3  # logits; wider gaps need no second token
CHECK_GAP_ABS = 1e-3  # logits; a pass without cache differs by about 1e-4
CHECK_GAP_REL = 0.01  # recorded gaps are cut to three digits

PROSE = ("lighthouse", "bakery", "train", "observatory", "market", "river", "clock")
FACTS = ("tides", "queues", "bread_recipe", "letter", "questions")
CODE = ("python_heap", "c_ring", "sql_orders", "json_station", "shell_backup")
LANGUAGES = ("chinese", "german", "japanese", "french", "korean", "spanish", "russian")

CHATS = {
    "chat_capital": [{"role": "user", "content": "What is the capital of France?"}],
    "chat_system": [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    "chat_turns": [
        {"role": "user", "content": "Give me a name for a small grey cat."},
        {"role": "assistant", "content": "How about Pebble?"},
        {"role": "user", "content": "Nice. And one for her brother, who is orange?"},
    ],
    "chat_code": [
        {"role": "user", "content": "Write a Python function that reverses a list in place."}
    ],
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one prompt is made: a prefix cut to whole tokens, then texts, cut to `num_tokens`.

    Texts are names in tests/golden/texts.txt, keys of CHATS, or "LICENSE". `num_tokens` None takes
    the texts as they are, the same for `prefix_tokens` 0 and the prefix, which is then left out.
    """

    name: str
    texts: tuple[str, ...]
    num_tokens: int | None = None
    prefix: tuple[str, ...] = ()
    prefix_tokens: int = 0
    small: bool = False


RECIPES = (
    Recipe("one_token", ("lighthouse",), 1, small=True),
    Recipe("one_block", ("bakery",), 16, small=True),
    Recipe("one_block_and_one", ("python_heap",), 17, small=True),
    Recipe("two_blocks_chinese", ("chinese",), 32, small=True),
    Recipe("chat_capital", ("chat_capital",), small=True),
    Recipe("emoji", ("emoji",), 90, small=True),
    Recipe("four_blocks_then_queues", ("queues",), 77, PROSE, 64, small=True),
    Recipe("four_blocks_then_sql", ("sql_orders",), 93, PROSE, 64, small=True),
    Recipe("twice_first", ("tides",), 128, small=True),
    Recipe("twice_second", ("tides",), 128, small=True),
    Recipe("python_heap", ("python_heap",), 200, small=True),
    Recipe("prose_400", ("river", "clock", "market", "train"), 400, small=True),
    Recipe("two_tokens", ("python_heap",), 2),
    Recipe("three_tokens", ("german",), 3),
    Recipe("five_tokens", ("observatory",), 5),
    Recipe("seven_tokens_japanese", ("japanese",), 7),
    Recipe("eight_tokens", ("questions",), 8),
    Recipe("one_block_less_one", ("river",), 15),
    Recipe("two_blocks_less_one", ("french",), 31),
    Recipe("two_blocks_and_one", ("proof",), 33),
    Recipe("three_blocks_less_one", ("spanish",), 47),
    Recipe("three_blocks", ("json_station",), 48),
    Recipe("four_blocks_less_one", ("shell_backup",), 63),
    Recipe("four_blocks_exactly", PROSE, 64),
    Recipe("four_blocks_and_one", PROSE, 65),
    Recipe("chat_system", ("chat_system",)),
    Recipe("chat_turns", ("chat_turns",)),
    Recipe("chat_code", ("chat_code",)),
    Recipe("spaces_and_tabs", ("spaces",)),
    Recipe("three_scripts", ("greek_arabic_hindi",), 100),
    Recipe("numbers", ("numbers",)),
    Recipe("javascript", ("javascript_debounce",), 112),
    Recipe("eight_blocks_less_one", ("questions", "letter"), 127),
    Recipe("eight_blocks_and_one", ("letter", "questions"), 129),
    Recipe("korean", ("korean",), 150),
    Recipe("ten_blocks_russian", ("russian",), 160),
    Recipe("twelve_blocks", ("bread_recipe", "numbers"), 192),
    Recipe("japanese_and_code", ("japanese", "c_ring"), 240),
    Recipe("sixteen_blocks_less_one", ("c_ring",), 255),
    Recipe("sixteen_blocks", ("LICENSE",), 256),
    Recipe("sixteen_blocks_then_prose", ("train",), 320, ("LICENSE",), 256),
    Recipe("sixteen_blocks_and_one", ("LICENSE",), 257),
    Recipe("twenty_four_blocks", ("letter", *PROSE), 384),
    Recipe("thirty_two_blocks", (*FACTS,), 512),
    Recipe("thirty_two_blocks_then_code", ("shell_backup",), 600, FACTS, 512),
    Recipe("thirty_two_blocks_then_clock", ("clock",), 640, FACTS, 512),
    Recipe("languages", LANGUAGES, 900),
    Recipe("license", ("LICENSE",), 1024),
    Recipe("code_and_facts", (*CODE, *FACTS), 1200),
    Recipe("everything", ("tides", "c_ring", *PROSE, "queues", "emoji", "proof", "letter"), 1500),
)


class TopTwo(NamedTuple):
    """The two token ids with the largest logits at one position, and how far these are apart."""

    top: int
    second: int
    gap: float


class PromptMaker:
    """Turns recipes into token ids with the model's tokenizer and chat template."""

    def __init__(self, model_path: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(
            model_path.parent, gguf_file=model_path.name
        )
        self._texts = _read_texts()

    def token_ids(self, recipe: Recipe) -> list[int]:
        """Give the prompt's token ids; ValueError if its texts are too short for its length."""
        prefix = self._encode(recipe.prefix)[: recipe.prefix_tokens] if recipe.prefix else []
        token_ids = (prefix + self._encode(recipe.texts))[: recipe.num_tokens]
        if len(prefix) != recipe.prefix_tokens or len(token_ids) != (
            recipe.num_tokens or len(token_ids)
        ):
            raise ValueError(f"the texts of {recipe.name} give only {len(token_ids)} tokens")
        return token_ids

    def _encode(self, names: tuple[str, ...]) -> list[int]:
        return self._tokenizer.encode("\n".join(self._text(name) for name in names))

    def _text(self, name: str) -> str:
        if name not in CHATS:
            return self._texts[name]
        return self._tokenizer.apply_chat_template(
            CHATS[name], tokenize=False, add_generation_prompt=True
        )


class Oracle:
    """transformers with the model in float32 and eager attention, one prompt at a time."""

    def __init__(self, model_path: Path) -> None:
        torch.set_num_threads(NUM_THREADS)
        self._model = AutoModelForCausalLM.from_pretrained(
            model_path.parent,
            gguf_file=model_path.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            attn_implementation="eager",
        ).eval()
        self.eos_token_id = self._model.config.eos_token_id

    @torch.inference_mode()
    def answer(self, prompt_token_ids: list[int]) -> list[TopTwo]:
        """Generate greedily; for each output token the two best candidates."""
        cache = DynamicCache(config=self._model.config)
        input_ids = prompt_token_ids
        outputs = []
        for _ in range(NUM_OUTPUT_TOKENS):
            outputs += self._top_two(input_ids, num_rows=1, cache=cache)
            input_ids = [outputs[-1].top]
        return outputs

    @torch.inference_mode()
    def reread(self, prompt: GoldenPrompt) -> list[TopTwo]:
        """Give what `answer` gives, with the recorded text as the history, in one pass."""
        input_ids = [*prompt.prompt_token_ids, *prompt.output_token_ids[:-1]]
        return self._top_two(input_ids, num_rows=len(prompt.output_token_ids), cache=None)

    def _top_two(
        self, input_ids: list[int], *, num_rows: int, cache: DynamicCache | None
    ) -> list[TopTwo]:
        logits = self._model(
            input_ids=torch.tensor([input_ids]),
            cache=cache,
            use_cache=cache is not None,
            logits_to_keep=num_rows,
        ).logits[0]
        values, token_ids = logits.topk(2, dim=-1)
        gaps = (values[:, 0] - values[:, 1]).tolist()
        return [
            TopTwo(top, second, gap)
            for (top, second), gap in zip(token_ids.tolist(), gaps, strict=True)
        ]


def make(model_path: Path, output_dir: Path) -> None:
    """Write both golden files."""
    prompts, oracle = PromptMaker(model_path), Oracle(model_path)
    records = {}
    for recipe in _with_progress(RECIPES, "answering"):
        token_ids = prompts.token_ids(recipe)
        answer = oracle.answer(token_ids)
        records[recipe.name] = _record(recipe.name, token_ids, answer, oracle.eos_token_id)
    small = [records[recipe.name] for recipe in RECIPES if recipe.small]
    for name, chosen in (("full", list(records.values())), ("small", small)):
        path = output_dir / f"golden_{name}.json"
        path.write_text(_dump(_header(model_path), chosen), encoding="utf-8")
        print(f"{path}: {len(chosen)} prompts, {path.stat().st_size:,} bytes")


def check(model_path: Path, name: str) -> list[str]:
    """Recompute one golden file and give what is wrong with it, one sentence each."""
    problems = _check_header(load_document(name), model_path)
    golden = {prompt.name: prompt for prompt in load(name)}
    recipes = [recipe for recipe in RECIPES if recipe.small or name == "full"]
    if list(golden) != [recipe.name for recipe in recipes]:
        return [*problems, f"golden_{name}.json has other prompts than this script"]
    prompts, oracle = PromptMaker(model_path), Oracle(model_path)
    for recipe in _with_progress(recipes, "checking"):
        prompt = golden[recipe.name]
        if prompts.token_ids(recipe) != list(prompt.prompt_token_ids):
            problems.append(f"{recipe.name}: the texts give other prompt tokens now")
        problems += _check_answer(prompt, oracle.reread(prompt))
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--output-dir", type=Path, default=GOLDEN_DIR, help="default: tests/golden")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--only", choices=("small", "full"), default="full", help="what to check")
    options = parser.parse_args()
    if not options.check:
        make(options.model, options.output_dir)
        return 0
    problems = check(options.model, options.only)
    print("\n".join(problems) or f"golden_{options.only}.json agrees with the oracle")
    return 1 if problems else 0


def _check_header(document: dict, model_path: Path) -> list[str]:
    recorded = document["model"]["sha256"]
    if recorded == _sha256(model_path):
        return []
    return [f"{model_path} is not the model of the golden files, whose sha256 is {recorded}"]


def _check_answer(prompt: GoldenPrompt, rows: list[TopTwo]) -> list[str]:
    problems = []
    for position, (top, second, gap) in enumerate(rows):
        where = f"{prompt.name}, output token {position}"
        recorded = prompt.output_token_ids[position]
        if recorded != top and not (gap < NEAR_TIE and recorded == second):
            problems.append(f"{where}: the oracle says {top}, recorded is {recorded}")
        elif abs(gap - prompt.gaps[position]) > CHECK_GAP_ABS + CHECK_GAP_REL * gap:
            problems.append(f"{where}: the gap is {gap}, recorded is {prompt.gaps[position]}")
    return problems


def _record(
    name: str, prompt_token_ids: list[int], answer: list[TopTwo], eos_token_id: int
) -> dict:
    return {
        "name": name,
        "prompt_token_ids": prompt_token_ids,
        "output_token_ids": [top for top, _, _ in answer],
        "gaps": [_cut(gap) for _, _, gap in answer],
        "runner_up": {
            str(position): second
            for position, (_, second, gap) in enumerate(answer)
            if gap < RUNNER_UP_BELOW
        },
        "eos_positions": [i for i, (top, _, _) in enumerate(answer) if top == eos_token_id],
    }


def _cut(gap: float) -> float:
    """Cut to three digits; never rounds up, so that "below NEAR_TIE" stays exact."""
    context = decimal.Context(prec=3, rounding=decimal.ROUND_DOWN)
    return float(context.create_decimal_from_float(gap))


def _header(model_path: Path) -> dict:
    return {
        "format_version": FORMAT_VERSION,
        "model": {"file": model_path.name, "sha256": _sha256(model_path)},
        "oracle": {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "dtype": "float32",
            "attention": "eager",
            "num_threads": NUM_THREADS,
        },
        "num_output_tokens": NUM_OUTPUT_TOKENS,
    }


def _dump(header: dict, records: list[dict]) -> str:
    """Give compact JSON with one prompt a line, so that a diff names the prompts that changed."""
    head = json.dumps(header, separators=(",", ":"))[:-1]
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    return f'{head},"prompts":[\n{lines}\n]}}\n'


def _read_texts() -> dict[str, str]:
    sections = (GOLDEN_DIR / "texts.txt").read_text(encoding="utf-8").split("\n=== ")[1:]
    texts = dict(section.split("\n", 1) for section in sections)
    texts["LICENSE"] = (ROOT / "LICENSE").read_text(encoding="utf-8")
    return texts


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _with_progress(recipes: Iterable[Recipe], what: str) -> Iterator[Recipe]:
    """Yield the recipes, with a bar where rich is installed and somebody looks, else with lines."""
    recipes = list(recipes)
    try:
        from rich.progress import track
    except ImportError:
        track = None
    if track is not None and sys.stderr.isatty():
        yield from track(recipes, description=what)
        return
    for number, recipe in enumerate(recipes, start=1):
        print(f"{what} {number}/{len(recipes)}: {recipe.name}", file=sys.stderr, flush=True)
        yield recipe


if __name__ == "__main__":
    sys.exit(main())
