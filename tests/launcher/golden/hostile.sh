#!/usr/bin/env bash
# Run 20260102-030405-calm-fox: mnist in torch at o1 (autocast), batch 128.
# Written by the launcher. Everything it reads and writes is under RUN and CODE.

set -u
umask 077
RUN='/data/my '"'"'runs'"'"' $x/20260102-030405-calm-fox'
CODE='/data/my '"'"'runs'"'"' $x/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'

telemetry() { # into files, a sample at once and then every 10 s; stdin is a pipe that ends with the run
  local held smi= group= limit=0 used= idle_files= files=$RUN/telemetry/$LAUNCHER_ATTEMPT-${SLURM_NODEID:-0}
  for held in /proc/self/fd/*; do # nothing of the run's, such as a lock, may stay held by this
    held=${held##*/}
    [ "$held" -le 2 ] || [ "$held" = 255 ] || exec {held}>&-
  done
  mkdir -p "$RUN/telemetry" || exit 0
  telemetry_limit
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

if [ -e "$RUN/cancelled" ]; then
  status cancelled null "\"$(now)\"" "cancelled before it started"
  exit 1
elif [ -e "$RUN/STOP" ]; then
  status stopped null "\"$(now)\"" "before it started"
  exit 85
fi
status running null null "" & # while the job starts
saying=$!

export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=''
export A='$(id) `id` '"'"'x'"'"' "y" \ ${HOME} ; & | > * ~ !'
export B='é ü 漢字 🦊'
export C=''
export D=-rf
export E=a,b=c:d
KEY=$(<'/home/mei/.key with space') && export KEY || exit 1
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
module load cuda/12.4
ulimit -c 0
trap - ERR

signalled=
# To everything of this run but this shell, which stays to write down how it ended.
trap 'signalled=TERM; trap "" TERM INT HUP; kill -TERM 0' TERM INT HUP
(
  trap : TERM INT HUP
  cd "$CODE" || exit 1
  /opt/venv/bin/python -m recipes.torch_.mnist \
    amp=o1 \
    batch=128 \
    'spec=/data/my '"'"'runs'"'"' $x/20260102-030405-calm-fox/plan.json' \
    'run=/data/my '"'"'runs'"'"' $x/20260102-030405-calm-fox'
  code=$?
  echo "$code" >"$logs/exit_code"
  exit "$code"
) &
child=$!
exec {telemetry}> >(telemetry >/dev/null 2>&1)
sampler=${!-}
wait "$saying"
waited=137
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  waited=$?
done
# A wait that a trap interrupts can return anything: the file that the child left counts, where it could be written.
code=$(cat "$logs/exit_code" 2>/dev/null)
code=${code:-$waited}
exec {telemetry}>&-
wait "$sampler" 2>/dev/null

ended="\"$(now)\""
if taken_over; then
  exit 1
elif [ "$code" = 0 ] && grep -qsw "\"attempts\": $attempt" "$RUN/result.json"; then
  status done 0 "$ended" ""
elif [ -e "$RUN/cancelled" ]; then
  status cancelled "$code" "$ended" "cancelled"
elif [ -e "$logs/stopped.json" ]; then
  status stopped "$code" "$ended" "" # the marker says at which step
elif [ -n "$signalled" ]; then
  status failed "$code" "$ended" "ended by a signal from outside"
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
