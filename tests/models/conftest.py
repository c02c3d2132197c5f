"""The one thing too slow to make anew for every test: the default model's packed weights."""

import pytest
from models.real_engine import load_default_network

from everbatch.models.llama import LlamaForCausalLM


@pytest.fixture(scope="session")
def default_network() -> LlamaForCausalLM:
    return load_default_network()
