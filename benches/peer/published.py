#!/usr/bin/env python3
"""Repeats the published router experiment with our `replay`: three routings of a whole trace, and the sweep before it.

The experiment (MiniMax-M2.5 on eight workers of four B200, Mooncake's toolagent trace, closed loop of 32) was published
with its figures; the reference was run with it, too, on a reconstruction of the trace. Writes tables, our reports and
the pictures that show the three routings together to results/published-experiment.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from summaries import REUSE, ROOT, THROUGHPUT, number, run, settings, write

# Name of the run in trace-summaries.jsonl, our folder and label, and the published figures: E2E, TTFT, TPOT, tokens a
# second, reuse. Those of round robin are of the first 2,000 rows only; the publication has no others.
RUNS = (
    ("tool_c32_w8_b49152_rr_aic", "round-robin", "round-robin", (2317, 263, 11.0, 2483, None)),
    ("tool_c32_w8_b49152_kvdef_aic", "kv", "kv", (2034, 142, 16.5, 2861, 0.494)),
    ("tool_c32_w8_b49152_kvtuned_aic", "kv-load-scale-32", "kv, prefill_load_scale 32", (1961, 122, 12.1, 2965, 0.554)),
)
FIGURES = (("mean_e2e_latency_ms", "mean E2E, ms", 1), ("mean_ttft_ms", "mean TTFT, ms", 1),
           ("mean_tpot_ms", "mean TPOT, ms", 2), (THROUGHPUT, "output, tokens/s", 0), (REUSE, "prefix reuse", 4))
SWEEP_ROWS = 2000
WEIGHTS = ("overlap_score_credit", "prefill_load_scale", "router_temperature")
# The reference's own run of the sweep, and the published figures.
SWEEP = ROOT / "results/published-experiment/sweep-reference.csv"
KEPT = ("latency.png", "latency-cdf.png", "throughput.png", "table.txt", "comparison.json")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="TRACE", help="toolagent_reconstructed.jsonl, plain or .gz")
    parser.add_argument("--bin", type=Path, default=ROOT / "target/release", metavar="DIR",
                        help="folder with our replay and loadgen (default: target/release of this repository)")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="seeds of a run with KV routing (default: 20)")
    parser.add_argument("--output", type=Path, default=ROOT / "results/published-experiment", metavar="DIR",
                        help="where everything goes (default: results/published-experiment)")
    chosen = parser.parse_args()
    if chosen.seeds < 1:
        parser.error(f"--seeds: {chosen.seeds}, expected a whole number of at least 1")
    for file in (chosen.trace, chosen.bin / "replay", chosen.bin / "loadgen"):
        if not file.is_file():
            parser.error(f"{file}: no such file")
    return chosen


def seeds_of(case, seeds):
    return range(seeds if case["router_mode"] == "kv_router" else 1)


def spread(reports, key):
    figures = [report[key] for report in reports]
    return {"mean": sum(figures) / len(figures), "least": min(figures), "most": max(figures)}


def three_routings(chosen, cases):
    """Our figures by run, with reports and pictures of the first seed in the output folder."""
    ours = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        for name, folder, _, _ in RUNS:
            case, place = cases[name], Path(scratch) / folder
            place.mkdir()
            files = {"report": str(place / "report.json"), "requests_csv": str(place / "requests.csv")}
            reports = [run(chosen.bin / "replay", settings(case, chosen.trace, seed) | (files if seed == 0 else {}))
                       for seed in seeds_of(case, chosen.seeds)]
            ours[name] = {key: spread(reports, key) for key, _, _ in FIGURES}
            folders.append(place)
            kept = chosen.output / folder
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(place / "report.json", kept / "report.json")
            print(f"{name}: {len(reports)} seeds", file=sys.stderr)
        labels = [word for _, _, label, _ in RUNS for word in ("--label", label)]
        done = subprocess.run([chosen.bin / "loadgen", "compare", *folders, *labels], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"error: loadgen compare ended with {done.returncode}: {done.stderr.strip()}")
        for name in KEPT:
            shutil.copy(Path(scratch) / name, chosen.output / name)
    return ours


def sweep(chosen, case):
    """The published settings on the first rows: (reference's line, ours by figure)."""
    with open(SWEEP, newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    results = []
    for line in lines:
        router = {key: float(line[key]) for key in WEIGHTS if line[key]}
        one = case | {"router_mode": line["router_mode"], "router": router}
        reports = [run(chosen.bin / "replay", settings(one, chosen.trace, seed) | {"head": SWEEP_ROWS})
                   for seed in seeds_of(one, chosen.seeds)]
        results.append((line, {key: spread(reports, key) for key, _, _ in FIGURES}))
    print(f"sweep: {len(results)} settings", file=sys.stderr)
    return results


def span(figure, digits):
    mean = f"{figure['mean']:,.{digits}f}"
    if figure["least"] == figure["most"]:
        return mean
    return f"{mean} ({figure['least']:,.{digits}f} to {figure['most']:,.{digits}f})"


def routings_table(ours, cases):
    out = ["| routing | figure | published | the reference's own run | ours, mean (least to most) | ours − reference |",
           "|---|---|---:|---:|---:|---:|"]
    for name, _, label, published in RUNS:
        for (key, title, digits), told in zip(FIGURES, published):
            peer, mine = cases[name]["expected"][key], ours[name][key]
            mark = "*" if name == RUNS[0][0] and told else ""
            out.append(f"| {label} | {title} | {'–' if told is None else f'{told:,}{mark}'} | {peer:,.{digits}f}"
                       f" | {span(mine, digits)} | {100 * (mine['mean'] / peer - 1):+.2f} % |")
    return out


def sweep_table(results):
    out = ["| credit | load scale | temperature | E2E published | reference | ours (least to most) "
           "| TTFT published | reference | ours | TPOT published | reference | ours |",
           "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for line, ours in results:
        weights = " | ".join(line[key] for key in WEIGHTS) if line[WEIGHTS[0]] else "round-robin | | "
        peer = {key: float(line[key]) for key in ("mean_e2e_ms", "mean_ttft_ms", "mean_tpot_ms")}
        out.append(f"| {weights} | {line['published_e2e_ms']} | {peer['mean_e2e_ms']:.0f} | {span(ours['mean_e2e_latency_ms'], 0)}"
                   f" | {line['published_ttft_ms']} | {peer['mean_ttft_ms']:.1f} | {ours['mean_ttft_ms']['mean']:.1f}"
                   f" | {line['published_tpot_ms']} | {peer['mean_tpot_ms']:.2f} | {ours['mean_tpot_ms']['mean']:.2f} |")
    return out


def main():
    chosen = arguments()
    lines = (ROOT / "tests/golden/trace-summaries.jsonl").read_text(encoding="utf-8").splitlines()
    cases = {case["name"]: case for case in map(json.loads, lines)}
    ours = three_routings(chosen, cases)
    swept = sweep(chosen, cases[RUNS[0][0]])
    text = ["# Tables of the published experiment", "",
            f"Written by `benches/peer/published.py`, {chosen.seeds} seeds a run with KV routing.", "", "## Three routings, whole trace", ""]
    text += routings_table(ours, cases) + ["", "\\* of the first 2,000 rows, as published.", ""]
    text += [f"## The sweep, first {number(SWEEP_ROWS)} rows", ""] + sweep_table(swept)
    write(chosen.output / "tables.md", "\n".join(text) + "\n")
    figures = {"whole_trace": ours, "sweep": [{"router_mode": line["router_mode"], **{key: line[key] for key in WEIGHTS}, **mine}
                                              for line, mine in swept]}
    write(chosen.output / "figures.json", json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
