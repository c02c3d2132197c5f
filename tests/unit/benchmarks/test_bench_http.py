"""HTTP against offline: what is promised, and that the official client's costs are only told."""

from argparse import Namespace

from bench_http import plan


def options(client: str) -> Namespace:
    return Namespace(model="m.gguf", kernels="native", client=client, rounds=3, max_rounds=9)


def test_rates_and_gaps_are_promised_at_32_and_64_streams():
    made = plan(options("raw"))

    assert made.at_least == {"decode_tokens_per_s_32": 0.9, "decode_tokens_per_s_64": 0.9}
    assert made.a_at_most == {"itl_p99_by_engines_32": 1.2, "itl_p99_by_engines_64": 1.2}
    assert set(made.at_least) <= set(made.figures)
    assert set(made.a_at_most) <= set(made.told_of_a)


def test_both_sides_get_the_same_model_and_kernels():
    made = plan(options("raw"))

    assert made.a.argv[2:5] == made.b.argv[2:] == ("m.gguf", "--kernels", "native")
    assert made.a.argv[5:] == ("--client", "raw")


def test_nothing_is_promised_of_the_official_client_and_its_record_has_a_name_of_its_own():
    made = plan(options("openai"))

    assert (made.at_least, made.a_at_most) == ({}, {})
    assert made.name == "http-openai-vs-offline"
