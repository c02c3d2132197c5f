"""Token ids of a scenario: who shares which, and who shares none."""

from command_line import scenario_text

from everbatch.sim.texts import TextMaker
from everbatch.workload.scenario import parse_scenario


def ids_of(*prompts, output_tokens=3) -> list[list[int]]:
    """The ids of requests with these prompts, outputs behind them."""
    requests = [
        {"id": str(number), "output_tokens": output_tokens, **prompt}
        for number, prompt in enumerate(prompts)
    ]
    specs = parse_scenario(scenario_text(requests), "given", "given").requests
    maker = TextMaker()
    return [[token for piece in maker.make(spec).pieces for token in piece] for spec in specs]


def named(*segments) -> dict:
    return {"prompt": [{"text": text, "tokens": tokens} for text, tokens in segments]}


def test_a_name_is_one_stream_for_every_count():
    short, long = ids_of(named(("system", 3)), named(("system", 8)))

    assert short[:3] == long[:3]


def test_names_are_told_apart_from_their_first_id_on():
    a, b = ids_of(named(("system", 4), ("a", 4)), named(("system", 4), ("b", 4)))

    assert a[:4] == b[:4]
    assert not set(a[4:]) & set(b[4:])


def test_a_stream_does_not_depend_on_where_it_stands():
    first, second = ids_of(named(("a", 4)), named(("b", 2), ("a", 4)))

    assert first[:4] == second[2:6]


def test_private_tokens_and_outputs_belong_to_one_request():
    ids = ids_of({"prompt_tokens": 4}, {"prompt_tokens": 4}, named(("a", 4)), named(("a", 4)))
    private = [*ids[0], *ids[1], *ids[2], *ids[3][4:]]

    assert len(set(private)) == len(private)


def test_written_ids_are_kept_and_meet_no_other():
    written, named_ids = ids_of({"prompt_token_ids": [0, 7, 7]}, named(("a", 9)))

    assert written[:3] == [0, 7, 7]
    assert all(token < 0 for token in named_ids + written[3:])


def test_texts_still_differ_when_all_ids_are_used_up():
    requests = [
        {"id": str(number), "output_tokens": 1, "prompt_tokens": 1 << 30} for number in range(4)
    ]
    specs = parse_scenario(scenario_text(requests), "given", "given").requests
    maker = TextMaker()

    first_ids = [maker.make(spec).pieces[0][0] for spec in specs]

    assert len(set(first_ids)) == 4
