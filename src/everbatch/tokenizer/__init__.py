"""Text and token ids: tokenizers, incremental detokenization, stop strings, chat templates."""
