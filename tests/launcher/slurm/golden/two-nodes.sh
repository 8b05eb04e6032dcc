#!/usr/bin/env bash
#SBATCH --job-name=mnist-o2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --partition=gpu
#SBATCH --account=GOV109199
#SBATCH --qos=no
#SBATCH --constraint=a100&nvlink
#SBATCH --time=24:00:00
#SBATCH --reservation=maint
#SBATCH --cpus-per-task=8
#SBATCH --mem=90G
#SBATCH --wckey=paper
#SBATCH --nice=100
#SBATCH --comment="two words \"quoted\""
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/mei/launcher-runs/20260102-030405-calm-fox/launch.log
#SBATCH --export=NIL
# Run 20260102-030405-calm-fox: mnist in torch at o2 (half_model_fp32_masters), batch 512.
# Written by the launcher. Everything it reads and writes is under RUN and CODE.

set -u
umask 077
RUN=/home/mei/launcher-runs/20260102-030405-calm-fox
CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

telemetry() { # into files, a sample at once and then every 10 s; stdin is a pipe that ends with the run
  local held smi= group= limit=0 used= idle_files= files=$RUN/telemetry/$LAUNCHER_ATTEMPT-${SLURM_NODEID:-0}
  for held in /proc/self/fd/*; do # nothing of the run's, such as a lock, may stay held by this
    held=${held##*/}
    [ "$held" -le 2 ] || [ "$held" = 255 ] || exec {held}>&-
  done
  mkdir -p "$RUN/telemetry" || exit 0
  telemetry_limit
  if command -v nvidia-smi; then
    # stdbuf: so that what it printed is in the file when it is ended. TZ: its times bear no time zone.
    local ids="${CUDA_VISIBLE_DEVICES:-${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS-}}}" by_line="stdbuf -oL"
    command -v stdbuf || by_line=
    TZ=UTC0 $by_line nvidia-smi ${ids:+"--id=$ids"} --loop=10 --format=csv,nounits \
      --query-gpu=timestamp,index,uuid,memory.used,memory.total,utilization.gpu,utilization.memory,power.draw,clocks.current.sm,clocks.current.memory,temperature.gpu \
      </dev/null >"$files.gpu.csv" 2>&1 &
    smi=$!
  fi
  {
    echo "time [s], cpu.busy [ticks], cpu.total [ticks], memory.available [kB], memory.total [kB]"
    telemetry_of_host
    while read -r -t 10 _ || [ $? -gt 128 ]; do telemetry_of_host; done
    telemetry_of_host
  } >"$files.host.csv"
  [ -z "$smi" ] || kill $(jobs -pr) # not by its number, which is another's by now if it crashed
}
telemetry_limit() { # the control group whose memory is most limited, if any is, and the names of what it tells
  local controllers path mounted each
  while IFS=: read -r _ controllers path; do
    case ,$controllers, in
      ,,) mounted=/sys/fs/cgroup && set -- max current inactive_file ;;
      *,memory,*) mounted=/sys/fs/cgroup/$controllers && set -- limit_in_bytes usage_in_bytes total_inactive_file ;;
      *) continue ;;
    esac
    path=$mounted${path%/} # a container may be told one that it doesn't see: what is missing has no files
    while [[ $path/ = "$mounted"/* ]]; do
      if [ -r "$path/memory.$1" ] && read -r each <"$path/memory.$1" && [ "$each" != max ]; then
        ((limit && limit <= each)) || limit=$each group=$path used=$2 idle_files=$3
      fi
      path=${path%/*}
    done
  done </proc/self/cgroup
}
telemetry_of_host() {
  local now user nice system idle waiting irq softirq stolen busy total available name bytes
  printf -v now '%(%s)T' -1
  read -r _ user nice system idle waiting irq softirq stolen _ </proc/stat
  { read -r _ total _ && read -r _ && read -r _ available _; } </proc/meminfo
  if [ -n "$group" ] && ((limit / 1024 < total)) && read -r bytes <"$group/memory.$used"; then
    total=$((limit / 1024)) available=$(((limit - bytes) / 1024))
    while read -r name bytes; do # files that nobody reads any more are given up when memory is wanted
      [ "$name" != "$idle_files" ] || available=$((available + bytes / 1024))
    done <"$group/memory.stat"
  fi
  busy=$((user + nice + system + irq + softirq + stolen))
  echo "$now, $busy, $((busy + idle + waiting)), $available, $total"
}

if [ "${1-}" = node ]; then
  cd "$CODE" || exit 1
  exec {telemetry}> >(telemetry >/dev/null 2>&1)
  exec /opt/venv/bin/python -m recipes.torch_.node --workers="$LAUNCHER_WORKERS" --number="$SLURM_NODEID" -m torch.distributed.run --nproc-per-node=2 \
    -m recipes.torch_.mnist \
    amp=o2 \
    batch=512 \
    spec=/home/mei/launcher-runs/20260102-030405-calm-fox/plan.json \
    run=/home/mei/launcher-runs/20260102-030405-calm-fox
fi

taken_over() { [ -e "$RUN/attempts/$((attempt + 1))" ]; } # Slurm may start a run again that it has lost sight of
status() {                                                # state, exit code or null, end or null, reason
  ! taken_over || return 0
  local reason=$4 error
  until error=$(write_status "$1" "$2" "$3" "$reason" 2>&1); do
    echo "$error" >&2
    [ -e "$RUN/.reserve" ] || return 1
    rm -f "$RUN/.reserve" # on a full disk, room enough to say so
    reason="$reason${reason:+; }${error##*: } in the run's folder"
  done
}
write_status() { # one writer, written aside, renamed
  {
    printf '{"schema": 1, "state": "%s", "attempt": %s, "exit_code": %s, ' "$1" "$attempt" "$2" &&
      printf '"started": "%s", "before": %s, "ended": %s, "reason": "%s", ' "$started" "$before" "$3" "$4" &&
      printf '"process": {"host": "%s", "boot": "%s", "pid": %s, "start": %s}}\n' "$host" "$boot" "$$" "$birth"
  } >"$RUN/.status.json" && mv -f "$RUN/.status.json" "$RUN/status.json"
}
now() { TZ=UTC0 printf '%(%Y-%m-%dT%H:%M:%SZ)T' -1; }
seconds_before() { # that earlier attempts ran: the last one until its end, or until its logs were last written to
  local last previous=$((attempt - 1)) sum=0 began until
  [ "$previous" -gt 0 ] && last=$(cat "$RUN/status.json" 2>/dev/null) || { echo 0; return; }
  [[ $last =~ \"before\":\ ([0-9]+) ]] && sum=${BASH_REMATCH[1]}
  if [[ $last == *"\"attempt\": $previous,"* && $last =~ \"started\":\ \"([^\"]+) ]]; then
    began=$(date -d "${BASH_REMATCH[1]}" +%s)
    if [[ $last =~ \"ended\":\ \"([^\"]+) ]]; then
      until=$(date -d "${BASH_REMATCH[1]}" +%s)
    else
      until=$(stat -c %Y "$RUN/attempts/$previous"/*.log | sort -n | tail -n 1)
    fi
    [ "$until" -lt "$began" ] || sum=$((sum + until - began))
  fi
  echo "$sum"
} 2>/dev/null

if [ ! -e "$RUN/plan.json" ]; then
  echo "the run folder $RUN is gone" >&2
  exit 1
fi
[ -d "$RUN/attempts" ] || mkdir "$RUN/attempts" || exit 1
attempt=1
# Two starts of one run never share a number: it is whose mkdir succeeds.
until error=$(mkdir "$RUN/attempts/$attempt" 2>&1); do
  if [ ! -e "$RUN/attempts/$attempt" ]; then
    echo "$error" >&2
    exit 1
  fi
  attempt=$((attempt + 1))
done
logs=$RUN/attempts/$attempt
exec >>"$logs/stdout.log" 2>>"$logs/stderr.log" </dev/null
rm -f "$RUN"/.{result.json,metrics.jsonl}.* "$RUN"/attempts/*/.*.json.* # a killed trainer wrote these aside
printf %4096s >"$RUN/.reserve"
started=$(now)
before=$(seconds_before)
read -r host </proc/sys/kernel/hostname
read -r boot </proc/sys/kernel/random/boot_id
read -r stat </proc/$$/stat
fields=(${stat##*) })
birth=${fields[19]}

# A STOP of an earlier attempt's own time limit is nobody's wish any more.
case $(cat "$RUN/STOP" 2>/dev/null) in "attempt "*) rm -f "$RUN/STOP" ;; esac

if [ -e "$RUN/cancelled" ]; then
  status cancelled null "\"$(now)\"" "cancelled before it started"
  exit 1
elif [ -e "$RUN/STOP" ]; then
  status stopped null "\"$(now)\"" "before it started"
  exit 85
fi
status running null null "" & # while the job starts
saying=$!

export HOME=/home/mei
export USER=mei
export LOGNAME=mei
export LANG=C.UTF-8
export PATH=/opt/slurm/bin:/usr/bin:/bin
export SLURM_CONF=/etc/slurm/slurm.conf
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export PYTHONPATH="$CODE" PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT=$attempt LAUNCHER_SPEC="$RUN/plan.json"

setup_failed() { # exit code, command
  trap - ERR
  echo "error: cluster.setup: \`$2\` failed with exit code $1" >&2
  [ -z "${saying-}" ] || wait "$saying"
  status failed "$1" "\"$(now)\"" "a line of cluster.setup failed with exit code $1; stderr.log says which"
  exit "$1"
}
trap 'setup_failed "$?" "$BASH_COMMAND"' ERR
# cluster.setup, as given
module purge
module load cuda/12.4
trap - ERR

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
# Where each node's process listens, in the order of Slurm's node numbers; ports differ, as addresses may not.
LAUNCHER_WORKERS=
port=$MASTER_PORT
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  address=$(scontrol --oneliner show node "$node" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
  LAUNCHER_WORKERS=$LAUNCHER_WORKERS${LAUNCHER_WORKERS:+,}${address:-$node}:$port
  port=$((port + 1))
done
export LAUNCHER_WORKERS

asked=
trap 'asked=yes; [ -e "$RUN/STOP" ] || echo "attempt $attempt" >"$RUN/STOP"' USR1

signalled=
# To everything of this run but this shell, which stays to write down how it ended.
trap 'signalled=TERM; trap "" TERM INT HUP; kill -TERM 0' TERM INT HUP
(
  trap : TERM INT HUP
  srun --ntasks-per-node=1 --nodes=2 --kill-on-bad-exit=0 --export=ALL --cpus-per-task=8 bash "$RUN/run.sh" node
  code=$?
  echo "$code" >"$logs/exit_code"
  exit "$code"
) &
child=$!
wait "$saying"
waited=137
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  waited=$?
done
# A wait that a trap interrupts can return anything: the file that the child left counts, where it could be written.
code=$(cat "$logs/exit_code" 2>/dev/null)
code=${code:-$waited}

ended="\"$(now)\""
if taken_over; then
  exit 1
elif [ "$code" = 0 ] && grep -qsw "\"attempts\": $attempt" "$RUN/result.json"; then
  status done 0 "$ended" ""
elif [ -e "$RUN/cancelled" ]; then
  status cancelled "$code" "$ended" "cancelled"
elif [ -n "$asked" ] && [ -e "$logs/stopped.json" ]; then
  requeued=("$RUN"/attempts/*/requeued)
  [ -e "${requeued[0]}" ] || requeued=()
  if [ "${#requeued[@]}" -ge 3 ]; then
    status stopped "$code" "$ended" "time limit, state saved; requeued 3 times already"
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
elif [ -e "$logs/stopped.json" ]; then
  status stopped "$code" "$ended" "" # the marker says at which step
elif [ -n "$signalled" ]; then
  status interrupted "$code" "$ended" "ended by Slurm's signal: a time limit, a preemption or scancel"
elif [ "$code" = 137 ]; then
  status interrupted "$code" "$ended" "the trainer was killed by signal 9"
elif [ "$code" = 0 ]; then
  status failed 0 "$ended" "the trainer ended with exit code 0 and left no result"
  code=1
elif [ "$code" -gt 128 ]; then
  status failed "$code" "$ended" "the trainer was killed by signal $((code - 128))"
elif [ "$code" = 2 ]; then
  status failed "$code" "$ended" "the trainer refused its settings"
else
  status failed "$code" "$ended" "the trainer ended with exit code $code"
fi
rm -f "$RUN/.reserve"
exit "$code"
