"""The parts of `run.sh` that only a Slurm job has: asked to stop before its time limit, requeued, started on nodes."""

from __future__ import annotations

STALE_STOP = r"""
# A STOP of an earlier attempt's own time limit is nobody's wish any more.
case $(cat "$RUN/STOP" 2>/dev/null) in "attempt "*) rm -f "$RUN/STOP" ;; esac
""".strip()

# Before the time limit Slurm signals this shell alone: the container and the trainer never see the signal.
TIME_LIMIT = r"""
asked=
trap 'asked=yes; [ -e "$RUN/STOP" ] || echo "attempt $attempt" >"$RUN/STOP"' USR1
""".strip()

UNWARNED = r"""
asked=
trap '' USR1 # what runs here can't be asked to save and stop
""".strip()

RENDEZVOUS = r"""
# The head is resolved here, where Slurm's programs are. The port follows from the job, so that no two jobs share one,
# and lies below those that the kernel hands to outgoing connections; one that a stranger listens on is passed over.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=$(scontrol --oneliner show node "$head" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
export MASTER_ADDR=${MASTER_ADDR:-$head} MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
slot=$SLURM_JOB_ID
while (: <"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do
  slot=$((slot + 997))
  MASTER_PORT=$((20000 + slot % 12000))
done
""".strip()

# Nodes meet before anything connects them; TensorFlow's processes, one a node, have to know of each other even then.
WORKERS = r"""
# Where each node's process listens, in the order of Slurm's node numbers; ports differ, as addresses may not.
LAUNCHER_WORKERS=
port=$MASTER_PORT
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  address=$(scontrol --oneliner show node "$node" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
  LAUNCHER_WORKERS=$LAUNCHER_WORKERS${LAUNCHER_WORKERS:+,}${address:-$node}:$port
  port=$((port + 1))
done
export LAUNCHER_WORKERS
""".strip()

REQUEUE = r"""
elif [ -n "$asked" ] && [ -e "$logs/stopped.json" ]; then
  requeued=("$RUN"/attempts/*/requeued)
  [ -e "${requeued[0]}" ] || requeued=()
  if [ "${#requeued[@]}" -ge __MAX_REQUEUES__ ]; then
    status stopped "$code" "$ended" "time limit, state saved; requeued __MAX_REQUEUES__ times already"
  else
    job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
    rm -f "$RUN/STOP"
    : >"$logs/requeued"
    status requeued "$code" "$ended" "time limit, state saved; waiting to go on"
    trap 'exit 0' TERM
    if scontrol requeue "${job:-$SLURM_JOB_ID}"; then
      # Slurm ends this shell; exiting by itself would race with that.
      for _ in {1..60}; do sleep 1; done
    else
      rm -f "$logs/requeued"
      status stopped "$code" "$ended" "time limit, state saved; Slurm refused to requeue it"
    fi
  fi
""".strip()

# Not the last word: Slurm knows whether this was a time limit, a preemption or scancel, and may start the run again.
INTERRUPTED = r"""
elif [ -n "$signalled" ]; then
  status interrupted "$code" "$ended" "ended by Slurm's signal: a time limit, a preemption or scancel"
elif [ "$code" = 137 ]; then
  status interrupted "$code" "$ended" "the __WHO__ was killed by signal 9"
""".strip()
