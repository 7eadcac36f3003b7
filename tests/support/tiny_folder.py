"""A small random model with its tokenizer and chat template, as a folder of the hub's layout."""

import json

from tiny import make
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CORPUS = [
    "the quick brown fox jumps over the lazy dog while the cat sleeps in the sun and the rain stays away",
    "system user assistant: what is the capital of France? The capital of France is Paris.",
    "".join(chr(c) for c in range(32, 127)) + "\n",
]


def save_tiny(folder, name="llama3", seed=0):
    """Write model, tokenizer and template; returns the folder and Transformers' model."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    # Just ASCII: the model's 256 rows have no room for every byte beside merges and control tokens.
    trainer = trainers.BpeTrainer(vocab_size=256, special_tokens=[AddedToken(t, special=True) for t in SPECIAL])
    backend.train_from_iterator(CORPUS * 3, trainer)
    assert backend.get_vocab_size() <= 256
    model = make(name, seed)
    model.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder, model
