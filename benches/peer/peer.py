"""One offline replay of the reference in a process of its own: peer.py SPEC.json OUT.json, DYN_LOG=error in the environment.

SPEC holds the keyword arguments of `run_trace_replay`, the trace and the router's configuration. OUT gets the summary and
what the call alone took, without Python's start and imports.
"""

import json
import resource
import sys
import time

from dynamo.llm import KvRouterConfig
from dynamo.replay import run_trace_replay


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


with open(sys.argv[1]) as file:
    spec = json.load(file)
arguments = spec["arguments"]
if spec["router"] is not None:
    arguments["router_config"] = KvRouterConfig.from_json(json.dumps(spec["router"]))
cpu, wall = cpu_seconds(), time.perf_counter()
report = run_trace_replay(spec["trace"], **arguments)
call = {"cpu_s": cpu_seconds() - cpu, "wall_s": time.perf_counter() - wall}
with open(sys.argv[2], "w") as file:
    json.dump({"summary": report.summary, "call": call}, file)
