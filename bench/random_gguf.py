#!/usr/bin/env python3
"""Writes a GGUF file of random weights in the shape of a published model, to measure memory and speed without it.

Setup (outside the project):  python3 -m venv V && V/bin/pip install numpy gguf
Run:  V/bin/python bench/random_gguf.py SHAPE OUT.gguf [--type f16|bf16|q8_0|q4_0] [--layers N] [--vocab N]

The vocabulary is made up too: the byte alphabet and merges of ever longer pieces, as many as the real one has, so that
a tokenizer built from it takes about as much memory. Its text means nothing, and neither does what the model says.
Shapes: see SHAPES below. `spark2_5-tiny` has the key and value geometry of Spark-X2.5-1.7B and almost nothing else.
"""
import argparse
import dataclasses
import sys

import gguf
import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
    arch: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_base: float


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6),
    "qwen3-1.7b": Shape("qwen3", 28, 2048, 6144, 16, 8, 128, 151936, 40960, 1e6),
    "spark2_5-1.7b": Shape("spark2_5", 28, 2048, 6656, 8, 2, 256, 131072, 1 << 20, 5e6),
    "spark2_5-tiny": Shape("spark2_5", 28, 64, 96, 2, 2, 256, 512, 1 << 20, 5e6),
}
# Spark-X2.5: every fourth layer sees the whole context; the others a window, with a rotation of their own.
SPARK_WINDOW, SPARK_FULL_EVERY, SPARK_ROPE_FULL_DIMS, SPARK_ROPE_SLIDING_BASE = 512, 4, 64, 1e4

TYPES = {
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
FILE_TYPES = {
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def byte_alphabet():
    """The printable character that stands for each byte in a byte-level vocabulary."""
    shown = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b <= 0xFF]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) for b in shown] + [chr(256 + n) for n in range(len(hidden))]


def vocabulary(size):
    """Tokens, their types, and the merges that make them: letters first, then pairs of earlier pieces."""
    tokens = SPECIAL + byte_alphabet()
    types = [int(gguf.TokenType.CONTROL)] * len(SPECIAL) + [int(gguf.TokenType.NORMAL)] * 256
    known, merges = set(tokens), []
    pieces = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    heads = ["\u0120" + p for p in pieces] + list(pieces)
    for head in [chr(0x120) + p for p in pieces]:
        tokens.append(head)
        merges.append(f"\u0120 {head[1:]}")
    known.update(tokens)
    grown = 0
    while len(tokens) < size:
        head = heads[grown]
        grown += 1
        for tail in pieces:
            if head + tail not in known and len(tokens) < size:
                known.add(head + tail)
                tokens.append(head + tail)
                merges.append(f"{head} {tail}")
                heads.append(head + tail)
    types += [int(gguf.TokenType.NORMAL)] * (len(tokens) - len(types))
    return tokens[:size], types[:size], merges


def layer_is_full(shape, layer):
    return shape.arch != "spark2_5" or layer % SPARK_FULL_EVERY == SPARK_FULL_EVERY - 1


def tensors(shape):
    """Name and (rows, columns) or (length,) of every tensor."""
    e, f, q, kv = shape.hidden, shape.ffn, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.vocab, e)
    yield "output_norm.weight", (e,)
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        yield at + "attn_norm.weight", (e,)
        if shape.arch == "spark2_5":
            yield at + "attn_qkv.weight", (q + 2 * kv, e)
            yield at + "attn_gate.weight", (shape.heads, e)
        else:
            yield at + "attn_q.weight", (q, e)
            yield at + "attn_k.weight", (kv, e)
            yield at + "attn_v.weight", (kv, e)
            yield at + "attn_q_norm.weight", (shape.head_dim,)
            yield at + "attn_k_norm.weight", (shape.head_dim,)
        yield at + "attn_output.weight", (e, q)
        yield at + "ffn_norm.weight", (e,)
        yield at + "ffn_gate.weight", (f, e)
        yield at + "ffn_up.weight", (f, e)
        yield at + "ffn_down.weight", (e, f)


def stored(rng, dims, kind):
    """Random values as they stand in the file, some thousand rows at a time."""
    rows, columns = dims
    parts = []
    for first in range(0, rows, 4096):
        count = min(4096, rows - first)
        values = rng.standard_normal((count, columns), dtype=np.float32) * np.float32(columns**-0.5)
        parts.append(values.astype(np.float16) if kind == "f16" else gguf.quants.quantize(values, TYPES[kind]))
    return np.concatenate(parts)


def write(name, shape, out, kind, seed):
    writer = gguf.GGUFWriter(out, shape.arch)
    writer.add_name(f"random-{name}-{kind}")
    writer.add_file_type(int(FILE_TYPES[kind]))
    writer.add_quantization_version(2)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocab)
    if shape.arch == "spark2_5":
        writer.add_sliding_window(SPARK_WINDOW)
        writer.add_array("spark2_5.attention.sliding_window_pattern",
                         [not layer_is_full(shape, layer) for layer in range(shape.layers)])
        writer.add_float32("spark2_5.rope.freq_base_swa", SPARK_ROPE_SLIDING_BASE)
        writer.add_uint32("spark2_5.rope.dimension_count", SPARK_ROPE_FULL_DIMS)
        writer.add_uint32("spark2_5.rope.dimension_count_swa", shape.head_dim)
    tokens, types, merges = vocabulary(shape.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("spark2_5" if shape.arch == "spark2_5" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)
    every = list(tensors(shape))
    for tensor, dims in every:
        if len(dims) == 1:
            writer.add_tensor_info(tensor, dims, np.dtype(np.float32), dims[0] * 4)
        else:
            block, size = gguf.GGML_QUANT_SIZES[TYPES[kind]]
            in_file = (dims[0], dims[1] // block * size) if kind != "f16" else dims
            item = np.dtype(np.float16) if kind == "f16" else np.dtype(np.uint8)
            writer.add_tensor_info(tensor, in_file, item, dims[0] * (dims[1] // block) * size,
                                   raw_dtype=TYPES[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for _, dims in every:
        writer.write_tensor_data(np.ones(dims, np.float32) if len(dims) == 1 else stored(rng, dims, kind))
    writer.close()
    weights = sum(int(np.prod(dims)) for _, dims in every)
    print(f"{out}: {weights} weights in {len(every)} tensors", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("out")
    parser.add_argument("--type", choices=sorted(TYPES), default="f16")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--vocab", type=int, help="fewer tokens than the shape has, at least 512")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    shape = dataclasses.replace(shape, layers=args.layers or shape.layers, vocab=args.vocab or shape.vocab)
    write(args.shape, shape, args.out, args.type, args.seed)


if __name__ == "__main__":
    main()
