#!/usr/bin/env python3
"""Runs our `replay` and the reference alternately on one trace and compares what the whole processes cost.

Called by `run`, which provides the Python that has the reference installed.
"""

import argparse
import ctypes
import gzip
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
KIBIBYTES_A_MEBIBYTE = 1024.0  # ru_maxrss counts kibibytes on Linux
ENGINE = {"max_num_batched_tokens": 16384, "max_num_seqs": 512, "block_size": 64, "num_gpu_blocks": 16384}
# The router's modes: the name here and in our flags, the name in the reference.
ROUTERS = {"round-robin": "round_robin", "kv": "kv_router"}
# Figures of the two reports, to see that both did the same work.
FIGURES = ("completed_requests", "duration_ms", "mean_e2e_latency_ms", "mean_ttft_ms", "mean_tpot_ms",
           "output_throughput_tok_s", "first_admission_prefix_cache_reused_ratio")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="TRACE", help="Mooncake trace, .jsonl or .jsonl.gz")
    parser.add_argument("--replay", type=Path, default=Path("target/release/replay"), metavar="FILE",
                        help="our binary (default: target/release/replay of this repository)")
    parser.add_argument("--mode", choices=("closed-loop", "timestamps", "scaling", "ours"), default="closed-loop",
                        help="closed-loop: 8 workers, 32 sessions at a time (default); timestamps: 8 workers, arrivals of the"
                             " trace; scaling: heads of 1,000/4,000/12,000 rows on 8/64/256 workers, 4 sessions a worker;"
                             " ours: closed loop without the reference, for settings that it does not have")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each (default: 5)")
    parser.add_argument("--routers", default="round-robin,kv", metavar="LIST", help="default: round-robin,kv")
    parser.add_argument("--head", type=int, metavar="ROWS", help="only the first rows of the trace")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="workers (default: 8)")
    parser.add_argument("--concurrency", type=int, default=32, metavar="N", help="sessions at a time (default: 32)")
    parser.add_argument("--ours-flags", default="", metavar="FLAGS",
                        help="further flags for our binary only, such as a timing profile with --mode ours;"
                             " write --ours-flags=\"…\"")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all runs and the comparison here")
    chosen = parser.parse_args()
    chosen.routers = chosen.routers.split(",")
    for name in chosen.routers:
        if name not in ROUTERS:
            parser.error(f"--routers: `{name}` is none of {', '.join(ROUTERS)}")
    if chosen.runs < 1:
        parser.error("--runs: at least 1")
    for file in (chosen.trace, chosen.replay):
        if not file.is_file():
            parser.error(f"{file}: no such file")
    return chosen


def settings_of(chosen):
    """What is compared: (label, rows or None, workers, concurrency or None)."""
    if chosen.mode == "scaling":
        return [(f"{rows} rows, {workers} workers", rows, workers, 4 * workers)
                for rows in (1000, 4000, 12000) for workers in (8, 64, 256)]
    concurrency = None if chosen.mode == "timestamps" else chosen.concurrency
    return [(chosen.mode, chosen.head, chosen.workers, concurrency)]


def head(trace, rows, target):
    """The first rows of the trace, unpacked: both programs read the same plain file. Returns how many there were."""
    opened = gzip.open(trace, "rt") if trace.suffix == ".gz" else open(trace)
    count = 0
    with opened as source, open(target, "w") as out:
        for line in source:
            if not line.strip():
                continue
            if rows is not None and count == rows:
                break
            out.write(line)
            count += 1
    return count


def adopt_orphans():
    """Makes this process the parent of grandchildren whose parent has ended (PR_SET_CHILD_SUBREAPER)."""
    if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) != 0:
        sys.exit(f"error: prctl: {os.strerror(ctypes.get_errno())}")


def measured(command, scratch, environment, stdout=subprocess.DEVNULL):
    """Runs a command to its end and returns its user and system CPU seconds, peak RSS and wall seconds.

    A shell starts it and ends at once; we wait for the orphan. Linux keeps a process's peak RSS over `exec`, so what
    Python starts itself would never read less than Python's own peak.
    """
    number, complaint = scratch / "pid", scratch / "stderr"
    started = time.perf_counter()
    with open(complaint, "wb") as stderr:
        subprocess.run(["sh", "-c", '"$@" & echo $! > "$0"', str(number), *command],
                       stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, check=True)
    process = int(number.read_text())
    try:
        _, status, usage = os.wait4(process, 0)
    except KeyboardInterrupt:
        os.kill(process, signal.SIGTERM)
        raise
    wall = time.perf_counter() - started
    if status != 0:
        words = complaint.read_text(errors="replace")[-2000:]
        sys.exit(f"error: {Path(command[0]).name} ended with {os.waitstatus_to_exitcode(status)}: {words}")
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "user_s": usage.ru_utime, "system_s": usage.ru_stime,
            "rss_mib": usage.ru_maxrss / KIBIBYTES_A_MEBIBYTE, "wall_s": wall}


def run_ours(chosen, trace, workers, concurrency, router, scratch):
    command = [str(chosen.replay.resolve()), str(trace), "--num-workers", str(workers), "--router-mode", router, "--json"]
    command += [word for key, value in ENGINE.items() for word in ("--" + key.replace("_", "-"), str(value))]
    if concurrency is not None:
        command += ["--concurrency", str(concurrency)]
    command += chosen.ours_flags.split()
    report = scratch / "ours.json"
    with open(report, "w") as out:
        result = measured(command, scratch, dict(os.environ), out)
    summary = json.loads(report.read_text())
    return result | {"figures": {name: summary.get(name) for name in FIGURES}}


def run_peer(chosen, trace, workers, concurrency, router, scratch):
    arguments = {"extra_engine_args": {"engine": ENGINE}, "num_workers": workers, "trace_block_size": 512,
                 "router_mode": ROUTERS[router]}
    if concurrency is not None:
        arguments["replay_concurrency"] = concurrency
    spec, report = scratch / "spec.json", scratch / "peer.json"
    spec.write_text(json.dumps({"trace": str(trace), "arguments": arguments, "router": {} if router == "kv" else None}))
    command = [sys.executable, str(HERE / "peer.py"), str(spec), str(report)]
    result = measured(command, scratch, dict(os.environ, DYN_LOG="error"))
    answer = json.loads(report.read_text())
    return result | {"call": answer["call"], "figures": {name: answer["summary"].get(name) for name in FIGURES}}


def spread(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def comparison(runs):
    """min/median/max of each side, and how many times the reference's least is of ours."""
    result = {}
    for side, several in runs.items():
        result[side] = {key: spread([run[key] for run in several]) for key in ("cpu_s", "rss_mib", "wall_s")}
        if "call" in several[0]:
            result[side]["call_cpu_s"] = spread([run["call"]["cpu_s"] for run in several])
        result[side]["figures"] = {name: spread([run["figures"][name] for run in several]) for name in FIGURES
                                   if all(run["figures"][name] is not None for run in several)}
    if "peer" in result:
        result["peer_over_ours"] = {key: result["peer"][key]["min"] / result["ours"][key]["min"]
                                    for key in ("cpu_s", "rss_mib", "wall_s")}
        result["peer_over_ours"]["call_cpu_s"] = result["peer"]["call_cpu_s"]["min"] / result["ours"]["cpu_s"]["min"]
    return result


def show(label, router, requests, result):
    print(f"\n{label}, {router}: {requests} requests")
    print(f"  {'':26}{'ours':>24}{'reference':>34}{'ratio of minima':>18}")
    peer = result.get("peer")
    rows = [("CPU s, whole process", "cpu_s", "cpu_s", 3), ("CPU s, the call alone", "cpu_s", "call_cpu_s", 3),
            ("peak RSS MiB", "rss_mib", "rss_mib", 1), ("wall s", "wall_s", "wall_s", 3)]
    for name, mine, theirs, digits in rows:
        if theirs == "call_cpu_s" and peer is None:
            continue
        text = lambda values: "/".join(f"{values[key]:.{digits}f}" for key in ("min", "median", "max"))
        left = "as above" if theirs == "call_cpu_s" else text(result["ours"][mine])
        right, ratio = ("", "") if peer is None else (text(peer[theirs]), f"{result['peer_over_ours'][theirs]:.1f}")
        print(f"  {name:26}{left:>24}{right:>34}{ratio:>18}")
    for name in ("mean_e2e_latency_ms", "mean_ttft_ms", "mean_tpot_ms", "first_admission_prefix_cache_reused_ratio"):
        text = lambda side: "/".join(f"{result[side]['figures'][name][key]:.4f}" for key in ("min", "median", "max")) \
            if side in result and name in result[side]["figures"] else ""
        same = all(side in result and name in result[side]["figures"] for side in ("ours", "peer")) and text("ours") == text("peer")
        short = name.removesuffix("_ms").replace("first_admission_prefix_cache_reused_ratio", "reused_ratio")
        once = lambda words: words.split("/")[0] if len(set(words.split("/"))) == 1 else words
        print(f"  {short:22}{once(text('ours')):>28}{once(text('peer')):>34}{'equal' if same else '':>18}")


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "") \
        if os.path.exists("/proc/cpuinfo") else platform.processor()
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.system() + " " + platform.release(),
            "python": platform.python_version(), "load_before": os.getloadavg()}


def main():
    chosen = arguments()
    about = {"reference": "ai-dynamo 1.6.1", "trace": chosen.trace.name, "mode": chosen.mode, "runs": chosen.runs,
             "engine": ENGINE, "ours_flags": chosen.ours_flags, "machine": machine()}
    sides = {"ours": run_ours} if chosen.mode == "ours" else {"ours": run_ours, "peer": run_peer}
    print(f"{about['trace']}, {chosen.runs} runs of each, alternating; min/median/max. Load before: "
          + "/".join(f"{load:.2f}" for load in about["machine"]["load_before"]))
    results = []
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="mockfleet-peer-") as folder:
        scratch = Path(folder)
        about["floor_rss_mib"] = measured(["true"], scratch, dict(os.environ))["rss_mib"]
        trace, unpacked = scratch / "trace.jsonl", object()
        for label, rows, workers, concurrency in settings_of(chosen):
            if rows != unpacked:
                requests, unpacked = head(chosen.trace, rows, trace), rows
                if rows is not None and requests < rows and chosen.mode != "scaling":
                    print(f"note: the trace has {requests} rows only", file=sys.stderr)
            for router in chosen.routers:
                runs = {side: [] for side in sides}
                for turn in range(chosen.runs):
                    # Whoever goes first in one turn goes second in the next.
                    for side in (list(sides) if turn % 2 == 0 else list(reversed(sides))):
                        runs[side].append(sides[side](chosen, trace, workers, concurrency, router, scratch))
                result = comparison(runs)
                results.append({"label": label, "router": router, "requests": requests, "workers": workers,
                                "concurrency": concurrency, "comparison": result, "runs": runs})
                show(label, router, requests, result)
    print(f"\nPeak RSS of `true` measured the same way: {about['floor_rss_mib']:.1f} MiB.")
    if chosen.json is not None:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
