#!/usr/bin/env python3
"""One arm of the comparison: llama.cpp through llama-cpp-python, low-level calls only (no Python in the timed loop but
one call a token). Prints one JSON line: prefill and decode rates in tokens a second.

usage: arm_llama_cpp.py MODEL.gguf THREADS PREFILL_TOKENS DECODE_TOKENS [--no-repack] [--no-flash]
"""
import ctypes
import json
import sys
import time

import llama_cpp as lc


def main() -> None:
    path, threads, n_prefill, n_decode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    quiet = lc.llama_log_callback(lambda *_: None)  # kept in a variable: the library holds only a pointer
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    mp = lc.llama_model_default_params()
    mp.n_gpu_layers = 0
    if "--no-repack" in sys.argv and hasattr(mp, "use_extra_bufts"):
        mp.use_extra_bufts = False
    model = lc.llama_model_load_from_file(path.encode(), mp)
    if not model:
        sys.exit(f"cannot load {path}")
    cp = lc.llama_context_default_params()
    cp.n_ctx = n_prefill + n_decode + 64
    cp.n_batch = cp.n_ubatch = 512
    cp.n_threads = cp.n_threads_batch = threads
    if hasattr(cp, "flash_attn_type"):
        cp.flash_attn_type = 0 if "--no-flash" in sys.argv else 1
    ctx = lc.llama_init_from_model(model, cp)
    vocab = lc.llama_n_vocab(lc.llama_model_get_vocab(model)) if hasattr(lc, "llama_n_vocab") else 30000
    tokens = [(i * 7919 + 13) % (vocab - 1000) + 500 for i in range(n_prefill)]

    def clear() -> None:
        lc.llama_memory_clear(lc.llama_get_memory(ctx), True)

    def evaluate(ids: list[int], pos: int) -> None:
        batch = lc.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = pos + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == len(ids) - 1
        if lc.llama_decode(ctx, batch):
            sys.exit("llama_decode failed")
        lc.llama_batch_free(batch)

    evaluate(tokens[:32], 0)  # warm-up
    clear()
    start = time.perf_counter()
    for at in range(0, n_prefill, 512):
        evaluate(tokens[at : at + 512], at)
    prefill = n_prefill / (time.perf_counter() - start)
    clear()
    evaluate(tokens[:8], 0)
    start = time.perf_counter()
    for i in range(n_decode):
        evaluate([tokens[i % n_prefill]], 8 + i)
    decode = n_decode / (time.perf_counter() - start)
    print(json.dumps({"engine": "llama.cpp", "prefill_tok_s": prefill, "decode_tok_s": decode}))


main()
