"""What `import everbatch` offers. A change here is a change for users: say so in CHANGELOG.md."""

import everbatch


def test_public_names_are_these():
    assert everbatch.__all__ == [
        "LLM",
        "CompletionOutput",
        "RequestOutput",
        "SamplingParams",
        "StructuredOutputsParams",
        "__version__",
    ]


def test_every_public_name_is_there():
    assert [name for name in everbatch.__all__ if getattr(everbatch, name, None) is None] == []
