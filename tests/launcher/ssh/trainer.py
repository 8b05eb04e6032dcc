"""A stand-in for the trainer's Python over there: it answers what the launcher asks of a Python, and takes
steps. With HOLD in its environment it stays at each step until the file `go` is in its folder."""

from __future__ import annotations

PROGRAM = r"""#!/usr/bin/python3 -S
import json, os, sys, time
if "-m" not in sys.argv:
    print("3.11.2\ntorch 2.13.0")  # what the prober asks a Python for
    sys.exit()
run = next(word[4:] for word in sys.argv if word.startswith("run="))
with open(os.environ["LAUNCHER_SPEC"]) as plan:
    steps = json.load(plan)["settings"]["steps"] or 20
pause = float(os.environ.get("PAUSE", "0"))
attempt = int(os.environ["LAUNCHER_ATTEMPT"])
checkpoint = os.path.join(run, "checkpoints", "step")
os.makedirs(checkpoint, exist_ok=True)
begun = int(open(checkpoint + "/at").read()) if os.path.exists(checkpoint + "/at") else 0
out = open(run + "/metrics.jsonl", "a")
start = {"event": "start", "attempt": attempt, "total_steps": steps, "time": time.time()}
print(json.dumps(start), file=out, flush=True)
print("begun", flush=True)
exec(os.environ.get("BEHAVIOUR", ""))
def keep(step):
    with open(checkpoint + "/at.new", "w") as stream:
        stream.write(str(step))
    os.replace(checkpoint + "/at.new", checkpoint + "/at")
for step in range(begun + 1, steps + 1):
    print("step", step, flush=True)
    row = {"step": step, "epoch": 0, "loss": 1 / step, "samples_per_second": 100.0, "time": time.time()}
    print(json.dumps(row), file=out, flush=True)
    time.sleep(pause)
    while "HOLD" in os.environ and os.path.exists(run):  # until the test is over at the latest
        if os.path.exists(run + "/go") or os.path.exists(run + "/STOP"):
            break
        time.sleep(0.02)
    if os.path.exists(run + "/STOP"):
        keep(step)
        marker = f"{run}/attempts/{attempt}/stopped.json"
        with open(marker + ".new", "w") as stream:
            json.dump({"schema": 1, "checkpoint": "checkpoints/step", "step": step}, stream)
        os.replace(marker + ".new", marker)
        os.remove(run + "/STOP")
        sys.exit(85)
keep(steps)
result = {"schema": 1, "status": "done", "attempts": attempt}
result.update(eval={"accuracy": 0.5}, observed={"verdict": "proved"})
with open(run + "/result.new", "w") as stream:
    json.dump(result, stream)
os.replace(run + "/result.new", run + "/result.json")
"""
