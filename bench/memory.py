#!/usr/bin/env python3
"""Memory predicted by the plan against memory measured, for the whole process tree.

Run:  python3 bench/memory.py --ours target/release/edge-deploy MODEL.gguf[:CONTEXT[,CONTEXT…]] …

For every model and context it starts a server, waits until it is ready, reads what is resident, fills the context of
every sequence (`--seqs`), reads again, and prints predicted against measured. While the server runs, its processes are
sampled every few milliseconds from outside, from the first moment on, so the peaks cover loading. RssAnon and RssFile
are summed over the tree; VmHWM, which the kernel keeps, bounds what sampling could miss.

Within = 5 % of the prediction or 32 MiB, the larger of the two. The exit code is 1 if anything is not.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.request

MIB = 1 << 20
SLACK_BYTES, SLACK_SHARE = 32 * MIB, 0.05


def status(pid):
    """Fields of /proc/PID/status in bytes, or nothing when it has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            fields[name] = int(words[0]) * 1024
        elif name == "PPid":
            fields[name] = int(words[0])
    return fields


def tree(root):
    """Process ids of `root` and its descendants."""
    found, again = {root}, True
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                pass
    while again:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        again = bool(more)
    return found


def memory(pids):
    sums = {"anonymous": 0, "file": 0, "peak": 0}
    for pid in pids:
        fields = status(pid)
        sums["anonymous"] += fields.get("RssAnon", 0)
        sums["file"] += fields.get("RssFile", 0) + fields.get("RssShmem", 0)
        sums["peak"] += fields.get("VmHWM", 0)
    return sums


class Sampler(threading.Thread):
    """Highest anonymous, file and summed memory of a tree."""

    def __init__(self, root, pause):
        super().__init__(daemon=True)
        self.root, self.pause, self.stop = root, pause, threading.Event()
        self.most = {"anonymous": 0, "file": 0, "sum": 0}
        self.samples = 0

    def run(self):
        pids, at = {self.root}, 0
        while not self.stop.is_set():
            if self.samples % 64 == 0:
                pids = tree(self.root)
            now = memory(pids)
            for name in ("anonymous", "file"):
                self.most[name] = max(self.most[name], now[name])
            self.most["sum"] = max(self.most["sum"], now["anonymous"] + now["file"])
            self.samples += 1
            time.sleep(self.pause)


def ask(url, body=None, timeout=3600):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def fill(url, seqs, context, seed):
    """Uses every token of the context of every sequence, all at the same time."""
    answer = 4

    def one(number):
        # Token ids, so that the length is exact; low ids exist in every vocabulary.
        prompt = [100 + (seed + 7 * number + 13 * at) % 400 for at in range(context - answer)]
        body = {"prompt": prompt, "max_tokens": answer, "temperature": 0,
                "logit_bias": {str(number): -100 for number in range(3)}}
        return ask(f"{url}/v1/completions", body)["usage"]

    with concurrent.futures.ThreadPoolExecutor(seqs) as pool:
        used = list(pool.map(one, range(seqs)))
    return used


def measure(args, model, context):
    command = [args.ours, "auto", "-m", model, "--port", "0", "--json",
               "--set", f"stages.decoder.max_seqs={args.seqs}"]
    if context:
        command += ["--context", str(context)]
    for pair in args.set:
        command += ["--set", pair]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sampler = Sampler(server.pid, args.pause / 1000)
    sampler.start()
    try:
        said, text = None, b""
        while said is None:
            line = server.stdout.readline()
            if not line:
                sys.exit(server.stderr.read().decode())
            text += line
            try:
                said = json.loads(text)
            except ValueError:
                pass
        if "url" not in said:
            sys.exit(json.dumps(said, indent=1))
        # What follows on stderr is log lines; nobody needs them, but the pipe must not fill up.
        threading.Thread(target=server.stderr.read, daemon=True).start()
        plan, url = said["plan"], said["url"]
        stage = next(iter(plan["stages"].values()))
        time.sleep(args.settle)
        loaded = memory(tree(server.pid))
        began = time.time()
        used = fill(url, args.seqs, stage["context"], 1)
        took = time.time() - began
        time.sleep(args.settle)
        filled = memory(tree(server.pid))
        effective = ask(f"{url}/v1/edge/effective")
    finally:
        sampler.stop.set()
        sampler.join()
        server.send_signal(signal.SIGTERM)
        server.wait()
    total = sum(one["total_tokens"] for one in used)
    return plan, effective, loaded, filled, sampler, total, took


def within(predicted, measured):
    return abs(measured - predicted) <= max(SLACK_BYTES, SLACK_SHARE * predicted)


def report(args, model, context):
    plan, effective, loaded, filled, sampler, total, took = measure(args, model, context)
    ledger = plan["memory"]
    stage = next(iter(plan["stages"].values()))
    real = {item["name"]: item["bytes"] for item in effective["memory"]["items"]}
    name = pathlib.Path(model).name
    print(f"\n{name}: context {stage['context']} x {stage['max_seqs']}, {total} tokens in {took:.1f} s, "
          f"{sampler.samples} samples")
    mib = lambda value: f"{value / MIB:9.1f}"
    rows = [
        ("anonymous, loaded", ledger["loaded_bytes"], loaded["anonymous"]),
        ("anonymous, filled", ledger["steady_bytes"], filled["anonymous"]),
        ("anonymous, peak", ledger["peak_bytes"], sampler.most["anonymous"]),
        ("mapped, loaded", ledger["mapped_steady_bytes"], loaded["file"]),
        ("mapped, filled", ledger["mapped_steady_bytes"], filled["file"]),
        ("mapped, peak", ledger["mapped_bytes"], sampler.most["file"]),
    ]
    good = True
    print(f"  {'':20} {'predicted':>9} {'measured':>9} {'differs':>9}  MiB")
    for label, predicted, measured in rows:
        fits = within(predicted, measured)
        good &= fits
        share = 100 * (measured - predicted) / max(predicted, 1)
        print(f"  {label:20} {mib(predicted)} {mib(measured)} {mib(measured - predicted)}  {share:+6.1f} %"
              f"{'' if fits else '  NOT WITHIN'}")
    print(f"  VmHWM {mib(filled['peak'])}, highest sampled sum {mib(sampler.most['sum'])}")
    for item in ledger["items"]:
        seen = real.get(item["name"])
        print(f"    {item['name']:20} {mib(item['bytes'])} {mib(seen) if seen is not None else '        -'}")
    stage_real = next(iter(effective["stages"].values()))
    exact = stage_real["kv_bytes"] == stage["kv_bytes"]
    good &= exact
    print(f"    KV allocated {stage_real['kv_bytes']} B, planned {stage['kv_bytes']} B"
          f"{'' if exact else '  NOT EQUAL'}; resident {stage_real['kv_resident_bytes']} B")
    sys.stdout.flush()
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL[:CONTEXTS]")
    parser.add_argument("--ours", default="target/release/edge-deploy")
    parser.add_argument("--seqs", type=int, default=1, help="sequences filled at the same time")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--pause", type=float, default=3, help="milliseconds between samples")
    parser.add_argument("--settle", type=float, default=0.5, help="seconds to wait before a reading")
    args = parser.parse_args()
    good = True
    for given in args.models:
        model, _, contexts = given.partition(":")
        for context in [int(c) for c in contexts.split(",")] if contexts else [None]:
            good &= report(args, model, context)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
