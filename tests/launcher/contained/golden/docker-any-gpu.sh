#!/usr/bin/env bash
# Run 20260102-030405-calm-fox: mnist in torch at o1 (autocast), batch 128.
# Written by the launcher. Everything it reads and writes is under RUN and CODE.

set -u
umask 077
RUN=/home/mei/launcher-runs/20260102-030405-calm-fox
CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

remove_container() { docker rm --force 20260102-030405-calm-fox >/dev/null 2>&1; }

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
    local ids="$gpus" by_line="stdbuf -oL"
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

ended_before() {
  if [ -e "$RUN/cancelled" ]; then
    status cancelled null "\"$(now)\"" "cancelled before it started"
    exit 1
  elif [ -e "$RUN/STOP" ]; then
    status stopped null "\"$(now)\"" "before it started"
    exit 85
  fi
}
ended_before

export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT=$attempt LAUNCHER_SPEC="$RUN/plan.json"

gpu_folder() { # where the locks are: the same place for every user of this host, on its own disk
  local folder
  for folder in /run/lock /var/tmp /tmp; do
    if [ -k "$folder" ] && [ -w "$folder" ] && df -l "$folder" >/dev/null 2>&1; then
      echo "$folder/launcher-gpu"
      return
    fi
  done
  return 1
}
gpu_lock() { # file, flags of flock: a lock on it, held by the descriptor $lock
  while :; do
    [ -e "$1" ] || (umask 0 && set -o noclobber && : >"$1") 2>/dev/null
    [ -f "$1" ] && [ ! -L "$1" ] && { exec {lock}<"$1"; } 2>/dev/null || return 2
    if ! flock ${2--n} "$lock"; then
      exec {lock}<&-
      return 1
    fi
    [ "$1" -ef "/dev/fd/$lock" ] && return
    exec {lock}<&- # someone tidied the folder up meanwhile
  done
}
gpu_note() { # file: whose lock it is, as they wrote it
  local user= run= since= _
  read -r user run since _ <"$1" 2>/dev/null
  user=${user//[^[:alnum:]._@-]/?} run=${run//[^[:alnum:]._-]/?} since=${since//[^0-9TZ:-]/?}
  echo "held by ${user:-another launcher}${run:+ (run $run)}${since:+ since $since}"
}
gpu_process() { # pid, name: whose it is and since when
  local user seconds
  user=$(stat -c %U "/proc/$1" 2>/dev/null)
  seconds=$(ps -o etimes= -p "$1" 2>/dev/null)
  user=${user//[^[:alnum:]._@-]/?} name=${2##*/}
  name=${name//[^[:alnum:]._+-]/?}
  printf 'process %s%s%s' "$1" "${name:+ ($name)}" "${user:+ of $user}"
  [ -z "$seconds" ] || TZ=UTC0 printf ' since %(%Y-%m-%dT%H:%M:%SZ)T' $(($(TZ=UTC0 printf '%(%s)T' -1) - seconds))
  echo
}
ask_driver() { timeout 20 nvidia-smi "$@"; } # one that hangs answers nobody, ever
gpu_look() { # a line for each GPU of this host: its index, its UUID, and who is on it; nothing is a free one
  local folder gpus apps index uuid used display on pid name who
  folder=$(gpu_folder) || return
  gpus=$(ask_driver --query-gpu=index,uuid,memory.used,display_active --format=csv,noheader,nounits) ||
    gpus=$(ask_driver --query-gpu=index,uuid,memory.used --format=csv,noheader,nounits) || return # an odd driver
  apps=$(ask_driver --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader) || return
  while IFS=', ' read -r index uuid used display; do
    who=
    if [ -e "$folder-$uuid" ]; then
      if gpu_lock "$folder-$uuid"; then exec {lock}<&-; else who=$(gpu_note "$folder-$uuid"); fi
    fi
    while IFS=', ' read -r on pid name; do
      if [ -z "$who" ] && [ "$on" = "$uuid" ]; then who=$(gpu_process "$pid" "$name"); fi
    done <<<"$apps"
    if [ -z "$who" ] && [[ $used =~ ^[0-9]+$ ]] && [ "$used" -ge 500 ] && [ "$display" != Enabled ]; then
      who="$used MiB in use by processes that are not seen from here"
    fi
    echo "$index $uuid $who"
  done <<<"$gpus"
}
gpu_take() { # how many, of which UUIDs, for whom: the indices in $gpus, or in $refusal who has them
  local count=$1 pool=" $2 " folder desk found index uuid who others= lock
  local -a chosen=()
  gpus= refusal="no folder of this host is open to everybody and on its own disk, to hold locks on GPUs"
  folder=$(gpu_folder) || return
  # Takers come one at a time, so that two who want the same GPUs never end with half of them each.
  refusal="the locks on GPUs ($folder-*) can't be taken: another launcher has been choosing for a minute"
  gpu_lock "$folder-desk" "--wait 60" || return
  desk=$lock refusal="nvidia-smi does not tell which GPUs are free"
  if found=$(gpu_look); then
    while read -r index uuid who; do
      [[ $pool == *" $uuid "* ]] || continue
      if [ -n "$who" ]; then
        others+="${others:+; }GPU $index: $who"
      elif [ "${#chosen[@]}" -lt "$count" ] && gpu_lock "$folder-$uuid"; then
        chosen+=("$lock") gpus+=${gpus:+,}$index
        TZ=UTC0 printf '%s %s %(%Y-%m-%dT%H:%M:%SZ)T\n' "$(id -un)" "$3" -1 |
          dd of="/dev/fd/$lock" conv=nocreat status=none # without O_CREAT, and by no name that a link could take
      fi
    done <<<"$found"
    refusal="GPUs asked for: $count, free: ${#chosen[@]}; ${others:-the others are not there any more}"
  fi
  exec {desk}<&-
  if [ "${#chosen[@]}" = "$count" ]; then
    gpu_locks=("${chosen[@]}")
    return
  fi
  for lock in ${chosen[@]+"${chosen[@]}"}; do exec {lock}<&-; done
  return 1
}
gpu_release() { # at once, whatever a descendant that lives on may have inherited
  local lock
  for lock in "${gpu_locks[@]}"; do flock --unlock "$lock"; done
}
# These GPUs, or as many of them, for this run alone. Cells of a sweep that come after its first one wait for theirs.
tell() { [ -z "${LAUNCHER_TURN-}" ] || { echo "$LAUNCHER_TURN $1" >&9 && exec 9>&-; }; } # whoever runs the sweep
pause=1
until gpu_take 1 'GPU-0000-0 GPU-0000-1' 20260102-030405-calm-fox; do
  ended_before
  if [ -z "${LAUNCHER_WAIT-}" ]; then
    status failed null "\"$(now)\"" "$refusal"
    rm -f "$RUN/.reserve"
    tell refused
    exit 75
  fi
  status queued null null "$refusal"
  for ((second = 0; second < pause; second++)); do
    sleep 1
    ended_before
  done
  pause=$((pause < 16 ? 2 * pause : 16))
done
echo "$gpus" >"$logs/gpus"
export LAUNCHER_GPUS=$gpus CUDA_VISIBLE_DEVICES=$gpus
tell taken
status running null null "" & # while the job starts
saying=$!

signalled=
# To everything of this run but this shell, which stays to write down how it ended.
trap 'signalled=TERM; trap "" TERM INT HUP; kill -TERM 0' TERM INT HUP
(
  trap : TERM INT HUP
  [ -d /home/mei/launcher-runs/.cache ] || mkdir -p -m 700 /home/mei/launcher-runs/.cache || exit 1
  [ -d /home/mei/launcher-runs/.cache/home ] || mkdir -p -m 700 /home/mei/launcher-runs/.cache/home || exit 1
  [ "$LAUNCHER_ATTEMPT" = 1 ] || remove_container
  docker \
    run \
    --rm \
    --init \
    --pull=never \
    --log-driver=none \
    --name=20260102-030405-calm-fox \
    --network=host \
    --ipc=host \
    --ulimit=memlock=-1 \
    --ulimit=stack=67108864 \
    --user=1000:1000 \
    --group-add=1000 \
    --group-add=27 \
    '--gpus="device='"$LAUNCHER_GPUS"'"' \
    --workdir=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
    --mount=type=bind,source=/home/mei/launcher-runs/20260102-030405-calm-fox,target=/home/mei/launcher-runs/20260102-030405-calm-fox \
    --mount=type=bind,source=/home/mei/launcher-runs/.cache,target=/home/mei/launcher-runs/.cache \
    --mount=type=bind,source=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855,target=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855,readonly \
    --env=HOME=/home/mei/launcher-runs/.cache/home \
    --env=LANG=C.UTF-8 \
    --env=PYTHONNOUSERSITE=1 \
    --env=XDG_CACHE_HOME=/home/mei/launcher-runs/.cache \
    --env=TORCHINDUCTOR_CACHE_DIR=/home/mei/launcher-runs/.cache/torchinductor \
    --env=TRITON_CACHE_DIR=/home/mei/launcher-runs/.cache/triton \
    --env=CUDA_CACHE_PATH=/home/mei/launcher-runs/.cache/cuda \
    --env=USER=mei \
    --env=LOGNAME=mei \
    --env=CUDA_DEVICE_ORDER=PCI_BUS_ID \
    --env=LAUNCHER_RUN_ID=20260102-030405-calm-fox \
    --env=LAUNCHER_SPEC=/home/mei/launcher-runs/20260102-030405-calm-fox/plan.json \
    --env=PYTHONPATH=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
    --env=PYTHONUNBUFFERED=1 \
    --env=LAUNCHER_ATTEMPT \
    --entrypoint= \
    local/torch \
    python3 \
    -m \
    recipes.torch_.mnist \
    amp=o1 \
    batch=128 \
    spec=/home/mei/launcher-runs/20260102-030405-calm-fox/plan.json \
    run=/home/mei/launcher-runs/20260102-030405-calm-fox
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
[ "$code" = 0 ] || remove_container
exec {telemetry}>&-
wait "$sampler" 2>/dev/null

gpu_release

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
elif [ "$code" -ge 125 ] && [ "$code" -le 127 ]; then
  status failed "$code" "$ended" "docker could not start the container or what runs in it (exit code $code)"
elif [ "$code" -gt 128 ]; then
  status failed "$code" "$ended" "the trainer was killed by signal $((code - 128))"
elif [ "$code" = 2 ]; then
  status failed "$code" "$ended" "the trainer refused its settings"
else
  status failed "$code" "$ended" "the trainer ended with exit code $code"
fi
rm -f "$RUN/.reserve"
exit "$code"
