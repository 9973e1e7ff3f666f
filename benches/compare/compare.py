#!/usr/bin/env python3
"""Times pi and llama.cpp on the same files, in turns, and prints ratios of medians.

Needs a release build of pi and the llama-cpp-python package, built for this machine. See README.md beside this file.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(json.loads(sys.argv[2]))
    args = arguments()
    pi = program(args)
    version = llama_version()
    found = []
    load = loads()
    for model in args.models:
        found += compare(model, args, pi)
    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "cpu": found[0]["cpu"],
        "system": f"{platform.system()} {platform.machine()}",
        "threads": args.threads,
        "rounds": args.rounds,
        "pi": found[0]["version"],
        "llama_cpp_python": version,
        "load_before": load,
        "memory_gb_s": found[0]["memory_gb_s"],
    }
    text = markdown(about, found)
    print(text)
    if args.save:
        save(pathlib.Path(args.save), about, found, text)
    return 0


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+", metavar="FILE", help="model files (GGUF) that both programs can read")
    p.add_argument("-p", "--n-prompt", type=number, default=512, help="length of the prompt; 0: no such test")
    p.add_argument("-n", "--n-gen", type=number, default=128, help="generated tokens; 0: no such test")
    p.add_argument("-t", "--threads", type=number, default=cores(), help="threads of both (default: all cores)")
    p.add_argument("--rounds", type=number, default=5, help="how often the two take turns (at least 5 for a result)")
    p.add_argument("--pause", type=float, default=0.5, help="seconds between two runs, in which threads come to rest")
    p.add_argument("--sparsity", default="auto", help="of pi: auto, off, exact")
    p.add_argument("--pi-model", metavar="FILE", help="what pi reads instead of the one FILE, such as the same weights "
                   "in PowerInfer's form")
    p.add_argument("--pi", metavar="PROGRAM", help="default: target/release/pi of this repository")
    p.add_argument("--save", nargs="?", const=str(ROOT / "benches" / "results"), metavar="FOLDER",
                   help="write JSON and Markdown there (default: benches/results)")
    args = p.parse_args()
    if args.threads < 1 or args.rounds < 1 or args.n_prompt + args.n_gen < 1:
        p.error("threads, rounds and at least one of -p and -n must be above 0")
    if args.pause < 0:
        p.error("--pause must not be negative")
    if args.pi_model and len(args.models) != 1:
        p.error("--pi-model needs exactly one FILE")
    for model in args.models + ([args.pi_model] if args.pi_model else []):
        if not os.path.isfile(model):
            p.error(f"{model}: no such file")
    return args


def number(text):
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("expected a number from 0 on")
    return value


def cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def loads():
    """What else the machine was doing: processes that want to run, on average over a minute. None if it cannot be known."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def program(args):
    if args.pi:
        if not shutil.which(args.pi):
            sys.exit(f"error: --pi {args.pi}: no such program")
        return args.pi
    folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = folder / "release" / ("pi.exe" if os.name == "nt" else "pi")
    if not path.is_file():
        sys.exit(f"error: {path} is not there; build it with: cargo build --release -p pi-cli")
    return str(path)


def llama_version():
    # In a process of its own: the package starts threads and prints when it is loaded.
    code = "import llama_cpp; print(llama_cpp.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        sys.exit("error: llama.cpp cannot be used; install it with: pip install llama-cpp-python")
    return done.stdout.split()[-1]


def compare(model, args, pi):
    """The results of a model: one per test."""
    tests = [(f"pp{args.n_prompt}", args.n_prompt, 0), (f"tg{args.n_gen}", 0, args.n_gen)]
    tests = [t for t in tests if t[1] + t[2] > 0]
    other = Llama(model, args)
    found = {name: {"pi": [], "llama": []} for name, _, _ in tests}
    bandwidth, last = None, {}
    try:
        for i in range(args.rounds):
            for name, prompt, generated in tests:
                row = run_pi(pi, model, args, prompt, generated, bandwidth)
                bandwidth = (row["memory_bytes_per_second"] or 0) / 1e9
                last[name] = row
                found[name]["pi"].append(row["avg_ts"])
                time.sleep(args.pause)
                found[name]["llama"].append(other.run(prompt, generated))
                time.sleep(args.pause)
            print(f"{os.path.basename(model)}: round {i + 1} of {args.rounds}", file=sys.stderr)
    finally:
        other.close()
    return [result(args.pi_model or model, name, last[name], found[name]) for name, _, _ in tests]


def result(model, name, row, samples):
    medians = {who: statistics.median(times) for who, times in samples.items()}
    return {
        "model": os.path.basename(model),
        "model_type": row["model_type"],
        "test": name,
        "pi_ts": samples["pi"],
        "llama_ts": samples["llama"],
        "pi_median": medians["pi"],
        "llama_median": medians["llama"],
        "ratio": medians["pi"] / medians["llama"],
        "isa": row["isa"],
        "sparsity": row["sparsity"],
        "active_share": row["active_share"],
        "bytes_per_token": row["bytes_per_token"],
        "memory_share": row["memory_share"],
        "cpu": row["cpu_info"],
        "version": row["build_version"],
        "memory_gb_s": (row["memory_bytes_per_second"] or 0) / 1e9,
    }


def run_pi(pi, model, args, prompt, generated, bandwidth):
    command = [pi, "bench", "-m", args.pi_model or model, "-p", str(prompt), "-n", str(generated), "-r", "1", "-o", "json"]
    command += ["-t", str(args.threads), "--sparsity", args.sparsity]
    if bandwidth is not None:
        command += ["--bandwidth", f"{bandwidth:.3f}"]  # measured in the first round
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)[0]


class Llama:
    """A process that has loaded a model and runs tests when it is told to."""

    def __init__(self, model, args):
        setup = {"model": model, "threads": args.threads, "context": args.n_prompt + args.n_gen + 8}
        command = [sys.executable, os.path.abspath(__file__), "--worker", json.dumps(setup)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()
        # As pi bench: each test is run once to warm up.
        self.run(min(args.n_prompt, 512), 0)
        self.run(0, min(args.n_gen, 8))

    def run(self, prompt, generated):
        """Tokens per second."""
        if prompt + generated == 0:
            return None
        self.process.stdin.write(json.dumps([prompt, generated]) + "\n")
        self.process.stdin.flush()
        return (prompt + generated) / self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("error: llama.cpp could not run the model")
        return float(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def worker(setup):
    """Loads the model; then, for every line on standard input, runs a test and prints the seconds it took."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the library prints does not get between the answers
    import llama_cpp

    threads = setup["threads"]
    llm = llama_cpp.Llama(setup["model"], n_ctx=setup["context"], n_batch=512, n_ubatch=512, n_threads=threads,
                          n_threads_batch=threads, logits_all=False, verbose=False)
    ctx, vocab = llm.ctx, llm.n_vocab()
    print(0.0, file=answers, flush=True)

    def decode(tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(array, len(tokens))) != 0:
            sys.exit("llama_decode failed")
        llama_cpp.llama_synchronize(ctx)

    for line in sys.stdin:
        prompt, generated = json.loads(line)
        state, tokens = 1, []
        for _ in range(prompt + generated):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            tokens.append((state >> 33) % vocab)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
        start = time.perf_counter()
        for i in range(0, prompt, 512):
            decode(tokens[i:min(i + 512, prompt)])
        for token in tokens[prompt:]:
            decode([token])
        print(time.perf_counter() - start, file=answers, flush=True)
    return 0


def markdown(about, found):
    lines = [
        f"{about['cpu']}, {about['threads']} threads, {about['date']}; pi {about['pi']} (`--sparsity {found[0]['sparsity']}`), llama-cpp-python "
        f"{about['llama_cpp_python']}; medians of {about['rounds']} alternating runs; load before: {about['load_before']}",
        "",
        "| file | test | pi t/s | llama.cpp t/s | ratio | active | MB/token | of memory |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in found:
        percent = lambda v: "-" if v is None else f"{100 * v:.1f} %"
        lines.append(
            f"| {r['model']} | {r['test']} | {r['pi_median']:.2f} | {r['llama_median']:.2f} | {r['ratio']:.2f} | "
            f"{percent(r['active_share'])} | {r['bytes_per_token'] / 1e6:.2f} | {percent(r['memory_share'])} |"
        )
    return "\n".join(lines)


def save(folder, about, found, text):
    folder.mkdir(parents=True, exist_ok=True)
    cpu = re.sub(r"[^a-z0-9]+", "-", about["cpu"].lower()).strip("-")
    name, n = f"{about['date']}-{cpu}", 1
    while (folder / f"{name}-{n}.json").exists():
        n += 1
    rows = [{k: v for k, v in r.items() if k not in ("cpu", "version", "memory_gb_s")} for r in found]
    path = folder / f"{name}-{n}"
    path.with_name(path.name + ".json").write_text(json.dumps({"about": about, "results": rows}, indent=1) + "\n")
    path.with_name(path.name + ".md").write_text(text + "\n")
    print(f"saved as {path}.json and .md", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
