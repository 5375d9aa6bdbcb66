#!/usr/bin/env python3
"""Writes a Qwen3-TTS folder of the published shapes with random weights, for measuring speed.

    python3 tests/py/write_speech_checkpoint.py 0.6B-CustomVoice /tmp/qwen3-tts-random [--seed 1]

Shapes and configurations come from tests/fixtures/qwen3_tts. Matrices are normal with deviation 1/sqrt(inputs), norms
and usage counts are 1, biases 0, so that values stay in range through every layer. The tokenizer has the byte
alphabet, the words of the templates, the special tokens at their real ids, and fillers. It says nothing sensible.

Needs numpy.
"""

import argparse
import itertools
import json
import re
import struct
import sys
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "qwen3_tts"
# Values made and written at once.
PIECE = 1 << 22
FIRST_ADDED = 151643
ADDED = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call>
</tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response>
</tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod>
<tts_text_bos_single> <|audio_pad|>""".split()
NOT_SPECIAL = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
ASSISTANT = 77091


def expanded(pattern):
    """Names that a pattern such as layers.{0..27}.x stands for."""
    parts = re.split(r"\{(\d+)\.\.(\d+)\}", pattern)
    ranges = [range(int(a), int(b) + 1) for a, b in zip(parts[1::3], parts[2::3])]
    for numbers in itertools.product(*ranges):
        name = parts[0]
        for number, text in zip(numbers, parts[3::3]):
            name += f"{number}{text}"
        yield name


def shapes(name):
    table = json.loads((FIXTURES / "shapes.json").read_text())
    return {full: shape for pattern, shape in table[name].items() for full in expanded(pattern)}


def kind(name, shape):
    """(mean, deviation) of a tensor's values."""
    if name.endswith((".alpha", ".beta", ".bias")):
        return 0.0, 0.0
    if name.endswith((".scale", ".gamma")):
        return 0.1, 0.0
    if len(shape) == 1:
        return 1.0, 0.0
    if name.endswith(("embedding_sum", "embed_sum")) or "embedding" in name:
        return 0.0, 1.0 if "embedding_sum" in name or "embed_sum" in name else 0.5
    inputs = int(np.prod(shape[1:]))
    # A transposed convolution is stored [in, out, taps].
    if re.search(r"(upsample\.\d\.0|decoder\.[1-4]\.block\.1)\.conv\.weight$", name):
        inputs = shape[0] * min(2, shape[2])
    return 0.0, inputs**-0.5


def values(generator, mean, deviation, count):
    for start in range(0, count, PIECE):
        size = min(PIECE, count - start)
        if deviation == 0.0:
            yield np.full(size, mean, dtype=np.float32)
        else:
            yield generator.standard_normal(size, dtype=np.float32) * np.float32(deviation) + np.float32(mean)


def bf16(piece):
    bits = piece.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write(path, dtype, table, generator):
    width = {"BF16": 2, "F32": 4}[dtype]
    header, at = {}, 0
    for name, shape in table.items():
        size = int(np.prod(shape)) * width
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in table.items():
            for piece in values(generator, *kind(name, shape), int(np.prod(shape))):
                file.write((bf16(piece) if dtype == "BF16" else piece.astype("<f4")).tobytes())


def byte_letters():
    """The letters that stand for bytes, in the order of their ids."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) for byte in visible] + [chr(0x100 + index) for index in range(len(hidden))]


def write_tokenizer(folder):
    texts = dict(enumerate(byte_letters()))
    merges, word = [], "a"
    for index, letter in enumerate("ssistant"):
        merges.append(f"{word} {letter}")
        word += letter
        texts[ASSISTANT if word == "assistant" else 300 + index] = word
    for identity in range(FIRST_ADDED):
        texts.setdefault(identity, f"filler{identity}")
    vocab = {text: identity for identity, text in sorted(texts.items())}
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    added = {
        str(FIRST_ADDED + index): {"content": text, "special": text not in NOT_SPECIAL}
        for index, text in enumerate(ADDED)
    }
    config = {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    configs = json.loads((FIXTURES / "configs.json").read_text())
    releases = [name for name in configs if name[0].isdigit()]
    parser.add_argument("release", choices=releases)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    codec = args.folder / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    (args.folder / "config.json").write_text(json.dumps(configs[args.release], indent=1))
    (args.folder / "generation_config.json").write_text(json.dumps(configs["generation"], indent=1))
    (codec / "config.json").write_text(json.dumps(configs["speech_tokenizer"], indent=1))
    write_tokenizer(args.folder)
    generator = np.random.default_rng(args.seed)
    same_shapes = {"1.7B-VoiceDesign": "1.7B-CustomVoice"}
    write(args.folder / "model.safetensors", "BF16", shapes(same_shapes.get(args.release, args.release)), generator)
    write(codec / "model.safetensors", "F32", shapes("speech_tokenizer"), generator)
    print(f"{args.folder}: {args.release}, random weights of seed {args.seed}", file=sys.stderr)


if __name__ == "__main__":
    main()
