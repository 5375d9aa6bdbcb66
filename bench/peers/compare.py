#!/usr/bin/env python3
"""Interleaved comparison of edge-deploy with llama.cpp on the same file and threads, in one run.

Setup (outside the project):  python3 -m venv V && V/bin/pip install llama-cpp-python numpy
Run:  V/bin/python bench/peers/compare.py --ours target/release/edge-deploy --rounds 5 MODEL.gguf [MODEL.gguf …]

Each round runs every arm once, in an order that rotates, each arm in its own process; the table gives medians, the
spread, and the ratio of medians. Rates drift on shared machines: trust the ratio, not the absolute numbers.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def run_ours(args, model):
    out = subprocess.run(
        [args.ours, "bench", "-m", model, "--threads", str(args.threads), "--prefill", str(args.prefill),
         "--decode", str(args.decode), "--repeat", "1", "--json"],
        check=True, capture_output=True, text=True).stdout
    results = {r["kind"]: r["tok_s"]["median"] for r in json.loads(out)["results"]}
    return {"prefill_tok_s": results["prefill"], "decode_tok_s": results["decode"]}


def run_llama(args, model, *flags):
    out = subprocess.run(
        [sys.executable, str(HERE / "arm_llama_cpp.py"), model, str(args.threads), str(args.prefill),
         str(args.decode), *flags], check=True, capture_output=True, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+")
    parser.add_argument("--ours", default="target/release/edge-deploy")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    arms = {
        "edge-deploy": lambda m: run_ours(args, m),
        "llama.cpp": lambda m: run_llama(args, m),
        "llama.cpp no-repack": lambda m: run_llama(args, m, "--no-repack"),
    }
    for model in args.models:
        samples = {name: [] for name in arms}
        names = list(arms)
        for round_number in range(args.rounds):
            turn = round_number % len(names)
            for name in names[turn:] + names[:turn]:
                try:
                    samples[name].append(arms[name](model))
                except subprocess.CalledProcessError as error:
                    print(f"{name}: {error}", file=sys.stderr)
        print(f"\n{pathlib.Path(model).name}  threads={args.threads} rounds={args.rounds}")
        for key, label in (("prefill_tok_s", f"prefill {args.prefill}"), ("decode_tok_s", f"decode {args.decode}")):
            ours = statistics.median(s[key] for s in samples["edge-deploy"])
            for name in names:
                values = [s[key] for s in samples[name]]
                if not values:
                    print(f"  {label:12} {name:20} failed in every round")
                    continue
                middle = statistics.median(values)
                print(f"  {label:12} {name:20} {middle:9.1f} tok/s ({min(values):.1f}–{max(values):.1f})"
                      f"  ours/this {ours / middle:5.2f}")


main()
