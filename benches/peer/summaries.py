#!/usr/bin/env python3
"""Holds our `replay` against whole-trace results of the reference, run by run and figure by figure.

tests/golden/trace-summaries.jsonl names the runs and the reference's figures. Runs with KV routing are repeated over
seeds, as the reference breaks ties at random and its figures are those of one run. Writes a table and all figures to
results/reference. Ends with 1 if a figure is beyond its limit. The limits are those of tests/it/reference_runs, which
takes fewer seeds. The traces are the user's own: those that are not there are left out, with a word.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "profiles"

SAME = 1e-6  # both compute in nanoseconds: what is left is the order of sums of floats
SKETCH = 0.002  # percentiles over token gaps: the reference keeps a sketch of 0.1 %, ours are exact
TABLE = 0.005  # the reference asks an estimator for each step's time, we read a table of the same estimator
TABLE_TAIL = 0.02  # the same, above the median, and wherever chance has a part
TABLE_TTST = 0.03  # the same for the second token, which a prompt of another request delays or just does not
CHANCE = 0.015  # a mean over seeds beside one run without a seed
CHANCE_REUSE = 0.01  # the same for the share of prompt tokens reused, as a difference

REUSE = "first_admission_prefix_cache_reused_ratio"
MAX_REUSE = "prefix_cache_reused_ratio"
THROUGHPUT = "output_throughput_tok_s"
# What the table shows; the JSON file has everything.
SHOWN = ("mean_ttft_ms", "median_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "mean_ttst_ms", "p95_ttst_ms", "mean_tpot_ms",
         "median_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "p99_itl_ms", "mean_e2e_latency_ms", "median_e2e_latency_ms",
         "p99_e2e_latency_ms", "request_throughput_rps", THROUGHPUT, REUSE)
COUNTS = ("num_requests", "completed_requests", "total_input_tokens", "total_output_tokens")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, metavar="TRACES", help="folder with the traces, plain or .gz")
    parser.add_argument("--replay", type=Path, default=ROOT / "target/release/replay", metavar="FILE",
                        help="our binary (default: target/release/replay of this repository)")
    parser.add_argument("--runs", default="", metavar="LIST", help="only the runs of these names, with commas")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="seeds of a run with KV routing (default: 20)")
    parser.add_argument("--profile-noise", type=float, default=0.0, metavar="SHARE",
                        help="make every time of a profile longer or shorter by up to this share, at random by seed: shows"
                             " what the table's own errors may move (default: 0)")
    parser.add_argument("--output", type=Path, default=ROOT / "results/reference", metavar="DIR",
                        help="where table.md and figures.json go (default: results/reference)")
    chosen = parser.parse_args()
    if chosen.seeds < 1:
        parser.error(f"--seeds: {chosen.seeds}, expected a whole number of at least 1")
    if not 0.0 <= chosen.profile_noise < 1.0:
        parser.error(f"--profile-noise: {chosen.profile_noise}, expected a share of at least 0 and below 1")
    if not chosen.replay.is_file():
        parser.error(f"--replay: {chosen.replay} is no file; `cargo build --release` makes it")
    if not chosen.traces.is_dir():
        parser.error(f"{chosen.traces} is no folder")
    return chosen


def timed_by_profile(case):
    return "timing_model" in case.get("engine", {})


def limit(key, case):
    """How far a figure may be from the reference's: (kind, value), or None where chance decides alone."""
    profile = timed_by_profile(case)
    percentile = key.startswith(("median_", "p75_", "p90_", "p95_", "p99_"))
    main = key in (THROUGHPUT, "request_throughput_rps") or key in ("mean_ttft_ms", "mean_tpot_ms", "mean_e2e_latency_ms")
    if key in COUNTS:
        return "relative", 0.0
    if case["router_mode"] == "kv_router":
        if key in (REUSE, MAX_REUSE):
            return "absolute", CHANCE_REUSE
        if main:
            return "relative", TABLE_TAIL if profile else CHANCE
        # The second token and the slowest token rates differ from seed to seed by more than this.
        steady = percentile and not key.endswith("_ttst_ms") and key not in ("p95_tpot_ms", "p99_tpot_ms")
        return ("relative", TABLE_TAIL) if profile and steady else None
    if not profile:
        return "relative", SKETCH if percentile and key.endswith("_itl_ms") else SAME
    if key.startswith(("min_", "max_")):
        return None
    if key.endswith("_ttst_ms") and not key.startswith("median_"):
        return ("relative", TABLE_TTST) if key == "mean_ttst_ms" else None
    if key.startswith("median_") or not percentile and not key.startswith("std_"):
        return "relative", TABLE
    return "relative", TABLE_TAIL


def find_trace(folder, name):
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def settings(case, trace, seed):
    """The configuration of `replay` for a run: the case's own keys, and the profile's file as the timing."""
    keys = {key: value for key, value in case.items() if key not in ("name", "expected")}
    keys |= {"trace": str(trace.resolve()), "seed": seed}
    if timed_by_profile(case):
        profile = PROFILES / f"{case['engine']['timing_model']['profile']}.json"
        keys["engine"] = with_profile(case["engine"], profile)
    return keys


def with_profile(engine, file):
    return engine | {"timing_model": {"type": "profile", "profile": str(file)}}


def noisy(times, share, draw):
    if isinstance(times, list):
        return [noisy(each, share, draw) for each in times]
    return times * (1.0 + share * (2.0 * draw.random() - 1.0))


def run(replay, keys, profile_noise=0.0):
    with tempfile.TemporaryDirectory() as folder:
        if profile_noise > 0.0 and timed_by_profile(keys):
            tables = json.loads(Path(keys["engine"]["timing_model"]["profile"]).read_text())
            draw = random.Random(keys["seed"])
            for part in ("prefill", "decode"):
                tables[part]["milliseconds"] = noisy(tables[part]["milliseconds"], profile_noise, draw)
            profile = Path(folder) / "profile.json"
            profile.write_text(json.dumps(tables))
            keys = keys | {"engine": with_profile(keys["engine"], profile)}
        config = Path(folder) / "config.yaml"
        config.write_text(json.dumps(keys))
        done = subprocess.run([replay, "--config", config, "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: replay ended with {done.returncode}: {done.stderr.strip()}\nconfiguration: {json.dumps(keys)}")
    # Our figures under the reference's names.
    return json.loads(done.stdout)["reference"]


def compare(case, reports):
    """One line a figure of the reference's summary."""
    lines = []
    for key, peer in case["expected"].items():
        ours = [report[key] for report in reports]
        mean = sum(ours) / len(ours)
        allowed = limit(key, case)
        kind, most = allowed or ("none", None)
        apart = abs(mean - peer) / (abs(peer) if kind == "relative" and peer else 1.0)
        lines.append({"figure": key, "peer": peer, "ours_mean": mean, "ours_min": min(ours), "ours_max": max(ours),
                      "peer_within_ours": min(ours) <= peer <= max(ours),
                      "difference_percent": 100.0 * (mean - peer) / peer if peer else None,
                      "limit": most, "limit_kind": kind, "ok": None if most is None else apart <= most})
    return lines


def number(value):
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"


def limit_text(line):
    if line["limit"] is None:
        return "–"
    return f"{line['limit']:g}" if line["limit_kind"] == "absolute" else f"{100 * line['limit']:g} %"


def overview(results):
    out = ["| run | requests | figures with a limit | within it | farthest of them | difference |",
           "|---|---:|---:|---:|---|---:|"]
    for result in results:
        limited = [line for line in result["figures"] if line["ok"] is not None]
        worst = max(limited, key=lambda line: abs(line["difference_percent"] or 0.0))
        out.append(f"| {result['name']} | {result['requests']:,} | {len(limited)} | {sum(line['ok'] for line in limited)}"
                   f" | {worst['figure']} | {worst['difference_percent']:+.2g} % |")
    return out


def chance(results, seeds):
    """How often the reference's figure lies among those of our seeds: were it one more seed, it would be an end of the
    range, and so outside of ours, in 2 of seeds + 1 cases."""
    moved = [line for result in results for line in result["figures"]
             if result["seeds"] > 1 and line["ours_min"] < line["ours_max"]]
    if not moved:
        return []
    outside = sum(not line["peer_within_ours"] for line in moved)
    return ["", f"Of {len(moved)} figures that chance moves, the reference's lies outside of the range of our {seeds} seeds in "
            f"{outside} ({100 * outside / len(moved):.1f} %). Were the reference one more seed of ours, "
            f"{200 / (seeds + 1):.1f} % would be expected."]


def figure_table(result):
    out = ["| figure | reference | ours, mean | least | most | difference | limit | ok |",
           "|---|---:|---:|---:|---:|---:|---:|---|"]
    for line in result["figures"]:
        if line["figure"] not in SHOWN and line["ok"] is not False:
            continue
        verdict = {True: "yes", False: "**no**", None: "–"}[line["ok"]]
        ours = " | ".join(number(line[key]) for key in ("ours_mean", "ours_min", "ours_max"))
        out.append(f"| {line['figure']} | {number(line['peer'])} | {ours} | {line['difference_percent']:+.3f} %"
                   f" | {limit_text(line)} | {verdict} |")
    return out


def table(results, seeds, profile_noise):
    out = ["# Our replay beside the reference's own whole-trace results", "",
           f"Written by `benches/peer/summaries.py`, {seeds} seeds a run with KV routing. All figures are in `figures.json`.",
           ""]
    if profile_noise > 0.0:
        out += [f"Every time of a profile was made longer or shorter by up to {100 * profile_noise:g} %, anew for each of {seeds} "
                "seeds.", ""]
    out += overview(results)
    if profile_noise == 0.0:
        out += chance(results, seeds)
    for result in results:
        out += ["", f"## {result['name']}", ""] + figure_table(result)
    return "\n".join(out) + "\n"


def write(path, text):
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def main():
    chosen = arguments()
    lines = (ROOT / "tests/golden/trace-summaries.jsonl").read_text().splitlines()
    cases = [json.loads(line) for line in lines]
    wanted = [name for name in chosen.runs.split(",") if name]
    for name in wanted:
        if name not in [case["name"] for case in cases]:
            sys.exit(f"error: --runs: `{name}` is none of {', '.join(case['name'] for case in cases)}")
    results = []
    for case in cases:
        if wanted and case["name"] not in wanted:
            continue
        trace = find_trace(chosen.traces, case["trace"])
        if trace is None:
            print(f"{case['name']}: left out, {chosen.traces} has no {case['trace']}", file=sys.stderr)
            continue
        by_chance = case["router_mode"] == "kv_router" or chosen.profile_noise > 0.0 and timed_by_profile(case)
        seeds = range(chosen.seeds if by_chance else 1)
        reports = [run(chosen.replay, settings(case, trace, seed), chosen.profile_noise) for seed in seeds]
        figures = compare(case, reports)
        beyond = [line["figure"] for line in figures if line["ok"] is False]
        print(f"{case['name']}: {'beyond the limit: ' + ', '.join(beyond) if beyond else 'ok'}", file=sys.stderr)
        results.append({"name": case["name"], "trace": case["trace"], "requests": case["expected"]["num_requests"],
                        "seeds": len(seeds), "figures": figures})
    if not results:
        sys.exit("error: nothing was compared")
    chosen.output.mkdir(parents=True, exist_ok=True)
    write(chosen.output / "figures.json", json.dumps(results, indent=1) + "\n")
    write(chosen.output / "table.md", table(results, chosen.seeds, chosen.profile_noise))
    return 1 if any(line["ok"] is False for result in results for line in result["figures"]) else 0


if __name__ == "__main__":
    sys.exit(main())
