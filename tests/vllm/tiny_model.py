"""A tiny random Qwen3 with a byte tokenizer, made in an environment that has transformers: `tiny_model.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


def make(folder: Path) -> None:
    """Write config, weights (bf16, 2 layers of width 64) and tokenizer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {token: number for number, token in enumerate([*letters, *SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[0], additional_special_tokens=list(SPECIAL[1:])
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    set_seed(0)
    config = Qwen3Config(
        vocab_size=288,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=words[SPECIAL[0]],
        bos_token_id=None,
        dtype="bfloat16",
    )
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
