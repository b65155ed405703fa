"""A byte-level tokenizer with a chat template, one token per byte.

Every text has exactly one tokenization and every UTF-8 text can be read, so that a reply put
back into the next prompt gives the ids that were sampled.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BYTES = 256
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END, PAD)
END_OF_TEXT_ID, TURN_START_ID, TURN_END_ID, PAD_ID = range(BYTES, BYTES + len(SPECIAL_TOKENS))
VOCAB_SIZE = BYTES + len(SPECIAL_TOKENS)

# A rendered conversation begins with the prompt that asked for the last reply, followed by that
# reply and the token that ends it: nothing is trimmed and no text depends on later turns.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- elif message['content'] -%}"
    "{%- for part in message['content'] -%}{{- part['text'] -}}{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|im_end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def byte_symbols() -> list[str]:
    """The printable stand-in of each byte value, in the order of byte values.

    The convention of byte-level BPE: bytes that print stand for themselves, the others are
    numbered upwards from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    symbols = []
    shifted = 0
    for byte in range(BYTES):
        if byte in printable:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(0x100 + shifted))
            shifted += 1
    return symbols


def build_tokenizer() -> Tokenizer:
    """The tokenizer; token id = byte value below 256, then the special tokens."""
    vocab = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def write_tokenizer(path: Path, max_length: int) -> None:
    """Write ``tokenizer.json``, its configuration and the chat template into folder `path`."""
    build_tokenizer().save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "bos_token": None,
        "pad_token": PAD,
        "unk_token": None,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"eos_token_id": [TURN_END_ID], "pad_token_id": PAD_ID}
    (path / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
