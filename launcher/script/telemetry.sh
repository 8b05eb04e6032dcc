# shellcheck shell=bash
# Samples of a run's GPUs and host, a sample at once and then every LAUNCHER_TELEMETRY_EVERY seconds;
# telemetry.py reads the files.
#
# run.sh sets that, and LAUNCHER_TELEMETRY_GPUS: taken for the GPUs in $LAUNCHER_GPUS, job for those of the Slurm job,
# or empty.

start_telemetry() { # it ends when nobody holds the descriptor $LAUNCHER_TELEMETRY any more, however they ended
  exec {LAUNCHER_TELEMETRY}> >(telemetry >/dev/null 2>&1)
}

telemetry() { # stdin is a pipe that ends with the run
  local held smi='' group='' limit=0 used='' idle_files=''
  local files=$LAUNCHER_RUN/telemetry/$LAUNCHER_ATTEMPT-${SLURM_NODEID:-0}
  for held in /proc/self/fd/*; do # nothing of the run's, such as a lock, may stay held by this
    held=${held##*/}
    [ "$held" -le 2 ] || [ "$held" = 255 ] || exec {held}>&-
  done
  [ -z "$LAUNCHER_SHARED" ] || umask 027
  mkdir -p "$LAUNCHER_RUN/telemetry" || exit 0
  uname -n >"$files.node"
  find_memory_limit
  sample_gpus
  {
    echo "time [s], cpu.busy [ticks], cpu.total [ticks], memory.available [kB], memory.total [kB]"
    sample_host
    while read -r -t "$LAUNCHER_TELEMETRY_EVERY" _ || [ $? -gt 128 ]; do sample_host; done
    sample_host
  } >"$files.host.csv"
  # shellcheck disable=SC2046 # not by $smi, which is another process's by now if nvidia-smi crashed
  [ -z "$smi" ] || kill $(jobs -pr)
}

sample_gpus() { # in the background; in $smi its process, where there is one
  local ids='' query line_buffered=(stdbuf -oL) # so that all it printed is in the file when it is ended
  case $LAUNCHER_TELEMETRY_GPUS in
    taken) ids=$LAUNCHER_GPUS ;;
    job) ids=${CUDA_VISIBLE_DEVICES:-${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS-}}} ;;
    *) return ;;
  esac
  command -v nvidia-smi || return
  command -v stdbuf || line_buffered=()
  query=timestamp,index,uuid,memory.used,memory.total,utilization.gpu,utilization.memory,power.draw
  query+=,clocks.current.sm,clocks.current.memory,temperature.gpu
  # TZ: its times bear no time zone.
  TZ=UTC0 ${line_buffered[@]+"${line_buffered[@]}"} nvidia-smi ${ids:+"--id=$ids"} --loop="$LAUNCHER_TELEMETRY_EVERY" \
    --format=csv,nounits --query-gpu="$query" </dev/null >"$files.gpu.csv" 2>&1 &
  smi=$!
}

find_memory_limit() { # the control group whose memory is most limited, if any is, and the names of its files
  local controllers path mounted bytes
  while IFS=: read -r _ controllers path; do
    case ,$controllers, in
      ,,) mounted=/sys/fs/cgroup && set -- max current inactive_file ;;
      *,memory,*) mounted=/sys/fs/cgroup/$controllers && set -- limit_in_bytes usage_in_bytes total_inactive_file ;;
      *) continue ;;
    esac
    path=$mounted${path%/} # a container may see a path that it has no files of
    while [[ $path/ = "$mounted"/* ]]; do
      if [ -r "$path/memory.$1" ] && read -r bytes <"$path/memory.$1" && [ "$bytes" != max ]; then
        ((limit && limit <= bytes)) || limit=$bytes group=$path used=$2 idle_files=$3
      fi
      path=${path%/*}
    done
  done </proc/self/cgroup
}

sample_host() {
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
