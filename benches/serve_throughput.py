#!/usr/bin/env python3
"""How much more `pi serve` generates for several clients at once than for one.

    benches/serve_throughput.py MODEL [--clients 8] [--tokens 64] [--rounds 5] [--least RATIO] [--pi PROGRAM] [-- OPTIONS OF PI SERVE]

First every client's question is asked alone and all at once: the answers have to be the same. Then rounds of one client and of all
take turns; the ratio of the medians of their total tokens per second is printed. Ends with 1 if it is below --least.
"""

import argparse
import json
import pathlib
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from serving import Process, fetch  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least", type=float, default=0.0)
    parser.add_argument("--pi", default=str(ROOT / "target/release/pi"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    # what stands behind -- is for pi serve
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]

    command = [args.pi, "serve", args.model, "--port", "0", "--parallel", str(args.clients), "-c", "1024", *options]
    with Process(command, until="^ready: ") as server:
        for line in server.lines:
            print(line, file=sys.stderr)
        figures = measure(server.url, args)
    ratio = figures["ratio"]
    if args.json:
        print(json.dumps(figures))
    else:
        print(
            f"1 client: {figures['one']:.1f} tokens/s | {args.clients} clients: {figures['all']:.1f} tokens/s together | "
            f"{ratio:.2f} times (single rounds: {figures['ratios'][0]:.2f} to {figures['ratios'][-1]:.2f})"
        )
    sys.exit(1 if ratio < args.least else 0)


def measure(url, args):
    def ask(i):
        """Text and number of tokens of an answer. Nothing of an earlier one is used."""
        body = {"prompt": f"Client {i} asks for a story about the number {i * i + 7}.", "max_tokens": args.tokens}
        body |= {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
        headers = {"Content-Type": "application/json"}
        status, text = fetch(url + "/v1/completions", json.dumps(body).encode(), headers, seconds=3600)
        if status != 200:
            raise SystemExit(f"{status}: {text}")
        answer = json.loads(text)
        return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]

    def together(clients):
        """Answers, and all tokens per second."""
        answers = [None] * len(clients)

        def one(place, client):
            answers[place] = ask(client)

        threads = [threading.Thread(target=one, args=pair) for pair in enumerate(clients)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
        return answers, sum(tokens for _, tokens in answers) / seconds

    everybody = range(args.clients)
    alone = [ask(i) for i in everybody]
    at_once, _ = together(everybody)
    if at_once != alone:
        differ = [i for i in everybody if at_once[i] != alone[i]]
        raise SystemExit(f"the answers of clients {differ} at once are not those alone: nothing is timed")
    if any(tokens != args.tokens for _, tokens in alone):
        raise SystemExit("an answer has fewer tokens than asked for: nothing is timed")
    rounds = [(together([i % args.clients])[1], together(everybody)[1]) for i in range(args.rounds)]
    one, all_ = (statistics.median(side) for side in zip(*rounds))
    return {"clients": args.clients, "one": one, "all": all_, "ratio": all_ / one, "ratios": sorted(b / a for a, b in rounds)}


if __name__ == "__main__":
    main()
