"""Between text and tokens: tokenizers, chat templates, incremental detokenization, stop strings."""
