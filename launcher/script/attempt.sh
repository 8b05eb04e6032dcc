# shellcheck shell=bash
# One attempt at a run: its number, its logs, status.json, the trainer from its start to its exit code, its last state.
#
# run.sh sets these before it sources supervise.sh, which is made of this file and the others beside it:
#   RUN       the run's folder                    SHARED        yes where a group reads records and logs
#   CODE      the snapshot of its code            QUEUE         slurm or direct
#   WHO       trainer, script or comparison       MAX_REQUEUES  of a Slurm job
#   RESULT    required, or empty                  ENGINE        docker or podman, or empty
#   TELEMETRY_EVERY  seconds, or empty         OWN_SECRETS   folder of secrets that end with the run, or empty

taken_over() { [ -e "$RUN/attempts/$((attempt + 1))" ]; } # Slurm may start a run again that it lost sight of

status() { # state, exit code or null, end or null, reason
  local reason=$4 error
  ! taken_over || return 0
  until error=$(write_status "$1" "$2" "$3" "$reason" 2>&1); do
    echo "$error" >&2
    [ -e "$RUN/.reserve" ] || return 1
    rm -f "$RUN/.reserve" # on a full disk, room enough to say so
    reason="$reason${reason:+; }${error##*: } in the run's folder"
  done
}

write_status() { # in a subshell: one writer, written aside, renamed
  [ -z "$SHARED" ] || umask 027
  {
    printf '{"schema": 1, "state": "%s", "attempt": %s, "exit_code": %s, ' "$1" "$attempt" "$2" &&
      printf '"started": "%s", "before": %s, "ended": %s, "reason": "%s", ' "$started" "$before" "$3" "$4" &&
      printf '"process": {"host": "%s", "boot": "%s", "pid": %s, "start": %s}}\n' "$host" "$boot" "$$" "$birth"
  } >"$RUN/.status.json" && mv -f "$RUN/.status.json" "$RUN/status.json"
}

now() { TZ=UTC0 printf '%(%Y-%m-%dT%H:%M:%SZ)T' -1; }

seconds_before() { # that earlier attempts ran: the last one until its end, or until its logs were last written to
  local last previous=$((attempt - 1)) sum=0 began until
  if [ "$previous" = 0 ] || ! last=$(cat "$RUN/status.json"); then
    echo 0
    return
  fi
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

begin_attempt() {
  local error fields number
  [ -z "$SHARED" ] || umask 027
  [ -d "$RUN/attempts" ] || mkdir "$RUN/attempts" || exit 1
  attempt=1
  # Two starts of one run never share a number: the one whose mkdir succeeds has it.
  until error=$(mkdir "$RUN/attempts/$attempt" 2>&1); do
    if [ ! -e "$RUN/attempts/$attempt" ]; then
      echo "$error" >&2
      exit 1
    fi
    attempt=$((attempt + 1))
  done
  logs=$RUN/attempts/$attempt
  exec >>"$logs/stdout.log" 2>>"$logs/stderr.log" </dev/null
  [ ! -e "$RUN/attempts/plan.json" ] || mv -f "$RUN/attempts/plan.json" "$logs/plan.json" # this resume's
  plan_file=$RUN/plan.json
  for ((number = attempt; number > 0; number--)); do
    [ ! -e "$RUN/attempts/$number/plan.json" ] || { plan_file=$RUN/attempts/$number/plan.json && break; }
  done
  rm -f "$RUN"/.{result.json,metrics.jsonl}.* "$RUN"/attempts/*/.*.json.* # a killed trainer wrote these aside
  printf %4096s "" >"$RUN/.reserve"
  started=$(now)
  before=$(seconds_before)
  read -r host </proc/sys/kernel/hostname
  read -r boot </proc/sys/kernel/random/boot_id
  read -r fields </proc/$$/stat
  read -ra fields <<<"${fields##*) }"
  birth=${fields[19]}
  umask 077
}

end_if_unwanted() { # cancelled, or asked to stop, before it started
  if [ -e "$RUN/cancelled" ]; then
    status cancelled null "\"$(now)\"" "cancelled before it started"
    exit 1
  elif [ -e "$RUN/STOP" ]; then
    status stopped null "\"$(now)\"" "before it started"
    exit 85
  fi
}

report_running() {
  status running null null "" & # while the job starts
  reporting=$!
}

setup_failed() { # exit code, command
  trap - ERR
  echo "error: cluster.setup: \`$2\` failed with exit code $1" >&2
  [ -z "${reporting-}" ] || wait "$reporting"
  status failed "$1" "\"$(now)\"" "a line of cluster.setup failed with exit code $1; stderr.log says which"
  exit "$1"
}

supervise() { # function that starts the job: run it in the background, and leave its exit code in $code
  local child waited=137 sampler=''
  container=''
  [ "$1" != trainer ] || container=$ENGINE # which outlives its client; on several nodes each node has its own
  signalled=
  # To everything of this run but this shell, which stays to record how it ended.
  trap 'signalled=TERM; trap "" TERM INT HUP; kill -TERM 0; [ -z "$container" ] || end_container &' TERM INT HUP
  (
    trap : TERM INT HUP
    "$1"
    code=$?
    [ -z "$container" ] || container_exit_code
    echo "$code" >"$logs/exit_code"
    exit "$code"
  ) &
  child=$!
  if [ "$1" = trainer ] && [ -n "$TELEMETRY_EVERY" ]; then # behind the start, which does not wait for it
    start_telemetry
    sampler=${!-}
  fi
  wait "$reporting"
  while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    waited=$?
  done
  # A wait that a trap interrupts can return anything: the file that the child left counts, where it could be written.
  code=$(cat "$logs/exit_code" 2>/dev/null)
  code=${code:-$waited}
  [ -z "$container" ] || remove_left_container
  if [ -n "$sampler" ]; then
    exec {telemetry}>&-
    wait "$sampler" 2>/dev/null
  fi
}

end_attempt() { # the run's last state, by the exit code and what lies in its folder
  local ended
  ended="\"$(now)\""
  if taken_over; then
    exit 1
  elif [ "$code" = 0 ] && has_result; then
    status "done" 0 "$ended" ""
  elif [ -e "$RUN/cancelled" ]; then
    status cancelled "$code" "$ended" "cancelled"
  elif [ "$QUEUE" = slurm ] && [ -n "$asked" ] && [ -e "$logs/stopped.json" ]; then
    requeue "$ended"
  elif [ -e "$logs/stopped.json" ]; then
    status stopped "$code" "$ended" "" # the marker says at which step
  elif [ "$QUEUE" = slurm ] && [ -n "$signalled" ]; then
    # Not the last word: Slurm knows which of them it was, and may start the run again.
    status interrupted "$code" "$ended" "ended by Slurm's signal: a time limit, a preemption or scancel"
  elif [ "$QUEUE" = slurm ] && [ "$code" = 137 ]; then
    status interrupted "$code" "$ended" "the $WHO was killed by signal 9"
  elif [ -n "$signalled" ]; then
    status failed "$code" "$ended" "ended by a signal from outside"
  elif [ "$code" = 0 ]; then
    status failed 0 "$ended" "the $WHO ended with exit code 0 and left no result"
    code=1
  elif [ -n "$ENGINE" ] && [ "$code" -ge 125 ] && [ "$code" -le 127 ]; then
    status failed "$code" "$ended" "$ENGINE could not start the container or what runs in it (exit code $code)"
  elif [ "$code" -gt 128 ]; then
    status failed "$code" "$ended" "the $WHO was killed by signal $((code - 128))"
  elif [ "$WHO" = comparison ]; then
    status failed "$code" "$ended" "not every arm could be measured"
  elif [ "$WHO$code" = trainer2 ]; then
    status failed 2 "$ended" "the trainer refused its settings"
  else
    status failed "$code" "$ended" "the $WHO ended with exit code $code"
  fi
  if [ -n "$OWN_SECRETS" ]; then # a job that Slurm starts again needs them
    grep -qE '"state": "(requeued|interrupted)"' "$RUN/status.json" || rm -rf "${RUN:?}/$OWN_SECRETS"
  fi
  rm -f "$RUN/.reserve"
  exit "$code"
}

# What this attempt's trainer wrote last: an engine that could not start it may end with 0 too.
has_result() { [ -z "$RESULT" ] || grep -qsw "\"attempts\": $attempt" "$RUN/result.json"; }
