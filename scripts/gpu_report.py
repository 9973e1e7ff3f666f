"""What scripts/gpu_check found, judged and written for people."""

import statistics


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "samples": len(values)}


def dense(f, width):
    """PyTorch's median for a width, in seconds."""
    found = f.get("torch")
    times = [statistics.median(t["seconds"]) for t in found if t.get("width") == width] if isinstance(found, list) else []
    return times[0] if times else None


def pass_of(tests):
    """Whether tests passed, in binaries of which each has or has not; `None` if that is not known: some were cut, or all were skipped."""
    passed = [t["passed"] for t in tests]
    if False in passed or not tests:
        return False
    return None if True not in passed or any("ran" not in t for t in tests) else True


def tests_of(tests):
    ran, skipped = sum(t.get("ran", 0) for t in tests), sum(len(t.get("skipped", [])) for t in tests)
    binaries = [t["passed"] for t in tests].count(True)
    return f"{binaries} of {len(tests)} binaries, {ran} tests" + (f"; skipped: {skipped}" if skipped else "")


def skipped(f):
    """Tests that were not run, each once."""
    return list(dict.fromkeys(f"{t['test']} {name}" for t in f.get("tests", []) for name in t.get("skipped", [])))


def verdicts(f):
    lines = []

    def verdict(what, holds, shown):
        lines.append({"what": what, "holds": holds, "shown": shown})

    rows = f.get("tests", [])
    plain, checked = ([t for t in rows if bool(t["check"]) is is_checked] for is_checked in (False, True))
    for what, tests in [("the end-to-end tests pass on the driver", plain), ("tests pass with compute-sanitizer", checked)]:
        if checked or tests is plain:
            verdict(what, pass_of(tests), tests_of(tests))
    for row in f.get("operators", []):
        if row["active"] == 0.1:
            shown = f"{row['of_dense']:.3f} of our dense"
            torch = dense(f, row["width"])
            if torch and row["type"].lower() == "f16":
                shown += f", {row['median_ns'] / 1e9 / torch:.3f} of PyTorch's"
            verdict(f"sparse FFN at 10 % at most 0.2 of dense: {row['width']} {row['type']}", None if f["emulated"] else row["of_dense"] <= 0.2, shown)
    if not any(row["active"] == 0.1 for row in f.get("operators", [])):
        verdict("sparse FFN at 10 % at most 0.2 of dense", None, "not measured")
    verdict("one wait per hybrid layer", f["waits_once"], "as the emulated driver counts, when this was built")
    rows = {(r["model"], r["what"], r["budget"]): statistics.median(r["samples"]) for r in f.get("decode", []) if r["samples"]}
    for name in f["models"]:
        pair = [rows.get((name, what, 0.25)) for what in ("hybrid", "dense by layers")]
        ratio = pair[0] / pair[1] if all(pair) else None
        verdict(f"hybrid at 1/4 at least 3 times the division by layers: {name}", None if ratio is None or f["emulated"] else ratio >= 3,
                "not measured" if ratio is None else f"{ratio:.2f} times")
    return lines


def crossover(f):
    """For each step of the part: its tokens, active share, how often a neuron's weights are read for every neuron (once for each four tokens
    any of which marks it), and the time of the sparse way by the dense way's; fewest reads first."""
    times = {(r["tokens"], r["active"], r["way"]): r["median_ns"] for r in f.get("crossover", [])}
    rows = []
    for (tokens, active, way), ns in times.items():
        dense = times.get((tokens, active, "dense"))
        if way == "sparse" and dense:
            groups = [min(4, tokens - at) for at in range(0, tokens, 4)]
            rows.append((tokens, active, sum(1 - (1 - active) ** n for n in groups), ns / dense))
    return sorted(rows, key=lambda row: row[2])


def text(f):
    t = []
    t.append(f"`scripts/gpu_check` at {f['commit']}, {f['date']}: {f['gpu']}; {f['machine']}")
    if f["emulated"]:
        t.append("\n**The driver is emulated: times and shares mean nothing.**")
    t.append("\n| must hold | | measured |\n|---|---|---|")
    word = {True: "holds", False: "does not hold", None: "unknown"}
    t += [f"| {v['what']} | {word[v['holds']]} | {v['shown']} |" for v in f["verdicts"]]
    t += [f"\nCut, because its time was spent: {name}." for name in f["cut"]] + [f"\nFailed: {why}." for why in f["failed"]]
    t.append("\n| tests | check | passed | skipped |\n|---|---|---:|---:|")
    for r in f.get("tests", []):
        shown = "failed" if r["passed"] is False else r.get("ran", "cut")
        t.append(f"| {r['test']} | {r['check'] or '-'} | {shown} | {len(r.get('skipped', []))} |")
    names = skipped(f)
    if names:
        t.append(f"\nskipped: {len(names)}, {', '.join(names)}")
    t.append(f"\ncompute-sanitizer: {f.get('sanitizer', 'not reached')}")
    t.append("\n| FFN | type | active | median µs | range | GB/s | of copies | of our dense | of PyTorch's F16 dense |\n|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for r in f.get("operators", []):
        torch, share = dense(f, r["width"]), r["memory_share"]
        beside = f"{r['median_ns'] / 1e9 / torch:.3f}" if torch else "-"
        share = f"{100 * share:.0f} %" if share else "-"
        t.append(f"| {r['width']} {r['dim']}x{r['ffn']} | {r['type']} | {100 * r['active']:.0f} % | {r['median_ns'] / 1e3:.1f} | {r['min_ns'] / 1e3:.1f} to "
                 f"{r['max_ns'] / 1e3:.1f} | {r['read_bytes_per_second'] / 1e9:.0f} | {share} | {r['of_dense']:.3f} | {beside} |")
    t.append("\n| tokens at once | active | reads of all weights | sparse way by dense way |\n|---:|---:|---:|---:|")
    t += [f"| {tokens} | {100 * active:.0f} % | {reads:.2f} | {ratio:.2f} |" for tokens, active, reads, ratio in crossover(f)] or ["| not reached | | | |"]
    t.append("\nWhere the last column passes 1 is what `CudaOptions::crossover` should be.")
    if isinstance(f.get("torch"), list):
        for r in f["torch"]:
            values = r.get("seconds") or r["copy"]
            s = spread(values)
            unit, by = ("µs", 1e6) if "width" in r else ("GB/s", 1e-9)
            what = f"dense FFN {r['width']}, F16" if "width" in r else "copies within the device"
            t.append(f"\nPyTorch, {what}: {s['median'] * by:.1f} {unit} ({s['least'] * by:.1f} to {s['most'] * by:.1f})")
    else:
        t.append(f"\nPyTorch: {f.get('torch', 'not reached')}")
    t.append("\n| model | what | without | tokens/s | range | runs | kernels per token | calls |\n|---|---|---|---:|---:|---:|---:|---:|")
    for r in f.get("switches", []):
        if not r["samples"]:
            t.append(f"| {r['model']} | {r['what']} | {r['without'] or '-'} | not reached | | | | |")
            continue
        s, (kernels, calls) = spread(r["samples"]), r["launches"] or ("-", "-")
        t.append(f"| {r['model']} | {r['what']} | {r['without'] or '-'} | {s['median']:.2f} | {s['least']:.2f} to {s['most']:.2f} | {s['samples']} | "
                 f"{kernels} | {calls} |")
    t.append("\n| model | budget of the weights | what | tokens/s | range | runs | on the device | of the floor | to CPU |\n|---|---:|---|---:|---:|---:|---:|---:|---:|")
    cpu = {r["model"]: statistics.median(r["samples"]) for r in f.get("decode", []) if r["what"] == "CPU" and r["samples"]}
    for r in f.get("decode", []):
        part = "-" if r["budget"] is None else f"{100 * r['budget']:g} %"
        if not r["samples"]:
            why = "not reached" if r["options"] else "does not fit"
            t.append(f"| {r['model']}, {r['layers']} layers | {part} | {r['what']} | {why} | | | | | |")
            continue
        s = spread(r["samples"])
        floor = f"{100 * r['floor'] * s['median']:.0f} %" if r.get("floor") else "-"
        size = f"{r['on_device'] / 2**30:.2f} GiB" if "on_device" in r else "-"
        t.append(f"| {r['model']}, {r['layers']} layers | {part} | {r['what']} | {s['median']:.2f} | {s['least']:.2f} to {s['most']:.2f} | {s['samples']} | {size} | {floor} | "
                 f"{s['median'] / cpu[r['model']]:.2f} |")
    t.append("\nThe floor is the larger of what the CPU and the GPU need for their bytes at the speeds that `pi doctor --costs` measured here.")
    t.append("llama.cpp is not measured beside it: of its prebuilt CUDA wheels xllamacpp-cuda12x 0.1.6 (22 MB, Python 3.11, glibc 2.35) is small enough, but "
             "it cannot be loaded without an NVIDIA driver, so nothing that uses it could be tried where this was written.")
    return "\n".join(t) + "\n"
