# shellcheck shell=bash
# One attempt at a run: its number, its logs, status.json, the trainer from its start to its exit code, its last state.
#
# run.sh sets these before it sources supervise.sh, which is made of this file and the others beside it:
#   LAUNCHER_RUN              the run's folder
#   LAUNCHER_CODE             the snapshot of its code
#   LAUNCHER_WHO              trainer, script or comparison
#   LAUNCHER_RESULT           required, or empty
#   LAUNCHER_ENGINE           docker or podman, or empty
#   LAUNCHER_SECRETS          folder of secrets that end with the run, or empty
#   LAUNCHER_QUEUE            slurm or direct
#   LAUNCHER_MAX_REQUEUES     of a Slurm job
#   LAUNCHER_SHARED           yes where a group reads records and logs
#   LAUNCHER_TELEMETRY_EVERY  seconds, or empty
#   LAUNCHER_LIMIT            seconds after which it ends the run, unset for none
# and for a user's script:
#   LAUNCHER_STOP_SIGNAL      raised in it when the run is asked to stop, or empty
#   LAUNCHER_STOP_BEFORE      seconds in which it then has to end; also with a time limit
#   LAUNCHER_BARE             yes if it runs without a wrapper
#   LAUNCHER_RATE             text before the samples/s that a bare script prints, or unset
#   LAUNCHER_RESUMES          yes if it has script.resume_arguments
#   LAUNCHER_UP               yes if it waits until it is asked to end
#
# The job runs in this shell, with the user's environment and cluster.setup, which may use any name but LAUNCHER_*. So
# every lasting variable is LAUNCHER_*, and no local one is declared around a job: bash would export it instead of the
# user's variable of that name.

# Slurm may start a run again that it lost sight of.
# shellcheck disable=SC2153 # run.sh sets it
taken_over() { [ -e "$LAUNCHER_RUN/attempts/$((LAUNCHER_ATTEMPT + 1))" ]; }

status() { # state, exit code or null, end or null, reason
  local reason=$4 error
  ! taken_over || return 0
  if [ "$1" = failed ] && [ -n "${LAUNCHER_EXIT-}" ] && declare -F restart_instead >/dev/null; then
    if restart_instead; then
      set -- requeued "$2" "$3"
      reason=$LAUNCHER_AGAIN_BECAUSE
    fi
    reason+=${LAUNCHER_NOT_AGAIN:+; not restarted: $LAUNCHER_NOT_AGAIN}
  fi
  until error=$(write_status "$1" "$2" "$3" "$reason" 2>&1); do
    echo "$error" >&2
    [ -e "$LAUNCHER_RUN/.reserve" ] || return 1
    rm -f "$LAUNCHER_RUN/.reserve" # on a full disk, room enough to say so
    reason="$reason${reason:+; }${error##*: } in the run's folder"
  done
  case $1 in
    queued | running) ;;
    *) cp -p "$LAUNCHER_RUN/status.json" "$LAUNCHER_LOGS/ended.json" 2>/dev/null ;; # later attempts replace status.json
  esac
}

write_status() { # in a subshell: one writer, written aside, renamed
  [ -z "$LAUNCHER_SHARED" ] || umask 027
  {
    printf '{"schema": 1, "state": "%s", "attempt": %s, "exit_code": %s, ' "$1" "$LAUNCHER_ATTEMPT" "$2" &&
      printf '"started": "%s", "before": %s, ' "$LAUNCHER_STARTED" "$LAUNCHER_BEFORE" &&
      printf '"ended": %s, "reason": "%s", "process": {"host": "%s", ' "$3" "$4" "$LAUNCHER_HOST" &&
      printf '"boot": "%s", "pid": %s, "start": %s}}\n' "$LAUNCHER_BOOT" "$$" "$LAUNCHER_BIRTH"
  } >"$LAUNCHER_RUN/.status.json" && mv -f "$LAUNCHER_RUN/.status.json" "$LAUNCHER_RUN/status.json"
}

first_attempt() { # folder of a run: the first attempt of its newest submission
  [[ $(cat "$1/submission.json" 2>/dev/null) =~ \"first_attempt\":\ ([0-9]+) ]] && echo "${BASH_REMATCH[1]}" || echo 1
}

now() { TZ=UTC0 printf '%(%Y-%m-%dT%H:%M:%SZ)T' -1; }

seconds_before() { # that earlier attempts ran: the last one until its end, or until its logs were last written to
  local last previous=$((LAUNCHER_ATTEMPT - 1)) sum=0 began until
  if [ "$previous" = 0 ] || ! last=$(cat "$LAUNCHER_RUN/status.json"); then
    echo 0
    return
  fi
  [[ $last =~ \"before\":\ ([0-9]+) ]] && sum=${BASH_REMATCH[1]}
  if [[ $last == *"\"attempt\": $previous,"* && $last =~ \"started\":\ \"([^\"]+) ]]; then
    began=$(date -d "${BASH_REMATCH[1]}" +%s)
    if [[ $last =~ \"ended\":\ \"([^\"]+) ]]; then
      until=$(date -d "${BASH_REMATCH[1]}" +%s)
    else
      until=$(stat -c %Y "$LAUNCHER_RUN/attempts/$previous"/*.log | sort -n | tail -n 1)
    fi
    [ "$until" -lt "$began" ] || sum=$((sum + until - began))
  fi
  echo "$sum"
} 2>/dev/null

read_stat() { # pid: in $stat what /proc says of that process, from its state on
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return
  # shellcheck disable=SC2206 # they are numbers, and bash before 5.1 makes a file in /tmp for a here-string
  stat=(${stat##*) })
}

begin_attempt() {
  local error stat number
  [ -z "$LAUNCHER_SHARED" ] || umask 027
  [ -d "$LAUNCHER_RUN/attempts" ] || mkdir "$LAUNCHER_RUN/attempts" || exit 1
  LAUNCHER_ATTEMPT=1
  # Two starts of one run never share a number: the one whose mkdir succeeds has it.
  until error=$(mkdir "$LAUNCHER_RUN/attempts/$LAUNCHER_ATTEMPT" 2>&1); do
    if [ ! -e "$LAUNCHER_RUN/attempts/$LAUNCHER_ATTEMPT" ]; then
      echo "$error" >&2
      exit 1
    fi
    LAUNCHER_ATTEMPT=$((LAUNCHER_ATTEMPT + 1))
  done
  LAUNCHER_LOGS=$LAUNCHER_RUN/attempts/$LAUNCHER_ATTEMPT
  exec >>"$LAUNCHER_LOGS/stdout.log" 2>>"$LAUNCHER_LOGS/stderr.log" </dev/null
  # This resume's own plan, if it has one; else that of the newest attempt with one, or the run's.
  [ ! -e "$LAUNCHER_RUN/attempts/plan.json" ] || mv -f "$LAUNCHER_RUN/attempts/plan.json" "$LAUNCHER_LOGS/plan.json"
  for ((number = LAUNCHER_ATTEMPT; number > 0; number--)); do
    LAUNCHER_SPEC=$LAUNCHER_RUN/attempts/$number/plan.json
    [ ! -e "$LAUNCHER_SPEC" ] || break
  done
  [ "$number" -gt 0 ] || LAUNCHER_SPEC=$LAUNCHER_RUN/plan.json
  # A killed trainer wrote these aside.
  rm -f "$LAUNCHER_RUN"/.{result.json,metrics.jsonl}.* "$LAUNCHER_RUN"/attempts/*/.*.json.*
  printf %4096s "" >"$LAUNCHER_RUN/.reserve"
  LAUNCHER_STARTED=$(now)
  LAUNCHER_BEFORE=$(seconds_before)
  read -r LAUNCHER_HOST </proc/sys/kernel/hostname
  read -r LAUNCHER_BOOT </proc/sys/kernel/random/boot_id
  read_stat "$$"
  LAUNCHER_BIRTH=${stat[19]}
  LAUNCHER_OOM_KILLS=$(oom_kills)
  umask 077
}

# How many processes the kernel has killed for lack of memory: of this control group; of this machine where that is not
# counted, or where the job is in a container of an engine.
oom_kills() {
  local controllers path files=(/proc/vmstat)
  while [ -z "$LAUNCHER_ENGINE" ] && IFS=: read -r _ controllers path; do
    case ,$controllers, in
      ,,) files=("/sys/fs/cgroup${path%/}/memory.events" "${files[@]}") ;;
      *,memory,*) files=("/sys/fs/cgroup/$controllers${path%/}/memory.oom_control" "${files[@]}") ;;
    esac
  done </proc/self/cgroup
  sed -n 's/^oom_kill //p' "${files[@]}" | head -n 1
} 2>/dev/null

lack_of_memory() { # exit code: whether that may have ended the job, as the end of a reason
  local killed=$(($(oom_kills) - LAUNCHER_OOM_KILLS)) row available=0 total=0
  # The last sample was taken after the job had ended.
  row=$(tail -n 2 "$LAUNCHER_RUN/telemetry/$LAUNCHER_ATTEMPT-0.host.csv" | head -n 1)
  [[ ! $row =~ ([0-9]+),\ ([0-9]+)$ ]] || available=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
  if [ "$killed" -gt 0 ]; then
    echo "; meanwhile the kernel killed a process for lack of memory"
  elif [ "$1" = 137 ] && ((available * 20 < total)); then
    echo "; before that $(gigabytes "$available") of $(gigabytes "$total") GB of memory were free"
  fi
} 2>/dev/null

gigabytes() { # of kB
  printf '%s.%s' "$(($1 * 1024 / 1000000000))" "$(($1 * 1024 / 100000000 % 10))"
}

end_if_unwanted() { # cancelled, or asked to stop, before it started
  if [ -e "$LAUNCHER_RUN/cancelled" ]; then
    status cancelled null "\"$(now)\"" "before it started"
    exit 1
  elif [ -e "$LAUNCHER_RUN/STOP" ]; then
    status stopped null "\"$(now)\"" "before it started"
    exit 85
  fi
}

report_running() {
  status running null null "" & # while the job starts
  LAUNCHER_REPORTING=$!
}

setup_failed() { # exit code, command
  trap - ERR EXIT
  echo "error: cluster.setup: \`$2\` failed with exit code $1" >&2
  [ -z "${LAUNCHER_REPORTING-}" ] || wait "$LAUNCHER_REPORTING"
  status failed "$1" "\"$(now)\"" "a line of cluster.setup failed with exit code $1; stderr.log says which"
  exit "$1"
}

# By an `exit`, as of a file that it sources, or by a signal, whose cause the queue knows.
setup_ended() { # exit code, command
  trap - ERR EXIT
  echo "error: cluster.setup ended the job at \`$2\`, before it began" >&2
  [ -z "${LAUNCHER_REPORTING-}" ] || wait "$LAUNCHER_REPORTING"
  status interrupted "$1" "\"$(now)\"" "cluster.setup ended the job before it began; stderr.log says where"
}

supervise() { # function that starts the job: run it in the background, and leave its exit code in $LAUNCHER_EXIT
  LAUNCHER_CONTAINER='' LAUNCHER_SIGNALLED=''
  [ "$1" != trainer ] || LAUNCHER_CONTAINER=$LAUNCHER_ENGINE # outlives its client; on several nodes each has its own
  # To everything of this run but this shell, which stays to record how it ended.
  trap '
    LAUNCHER_SIGNALLED=TERM
    trap "" TERM INT HUP USR1 USR2
    kill -TERM 0
    [ -z "$LAUNCHER_CONTAINER" ] || end_container &
  ' TERM INT HUP
  (
    trap : TERM INT HUP
    "$1"
    LAUNCHER_EXIT=$?
    [ -z "$LAUNCHER_CONTAINER" ] || container_exit_code
    echo "$LAUNCHER_EXIT" >"$LAUNCHER_LOGS/exit_code"
    exit "$LAUNCHER_EXIT"
  ) &
  local child=$! waited=137 sampler='' helpers=() helper
  if [ "$1" = trainer ] && [ -n "$LAUNCHER_TELEMETRY_EVERY" ]; then # behind the start, which does not wait for it
    start_telemetry
    sampler=${!-}
  fi
  if [ -n "${LAUNCHER_BARE-}" ] && [ -n "$LAUNCHER_STOP_SIGNAL" ]; then
    relay_stop "$child" &
    helpers+=("$!")
  fi
  if [ -n "${LAUNCHER_LIMIT-}" ]; then
    end_at_limit &
    helpers+=("$!")
  fi
  if declare -F start_nodes >/dev/null; then
    end_left_nodes &
    helpers+=("$!")
  fi
  if declare -F tell_of_hang >/dev/null; then
    tell_of_hang &
    helpers+=("$!")
  fi
  wait "$LAUNCHER_REPORTING"
  while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    waited=$?
  done
  # A wait that a trap interrupts can return anything: the file that the child left counts, where it could be written.
  LAUNCHER_EXIT=$(cat "$LAUNCHER_LOGS/exit_code" 2>/dev/null)
  LAUNCHER_EXIT=${LAUNCHER_EXIT:-$waited}
  for helper in ${helpers[@]+"${helpers[@]}"}; do { kill -KILL "$helper" && wait "$helper"; } 2>/dev/null; done
  [ -z "$LAUNCHER_CONTAINER" ] || remove_left_container
  if [ -n "$sampler" ]; then
    exec {LAUNCHER_TELEMETRY}>&-
    wait "$sampler" 2>/dev/null
  fi
}

end_at_limit() { # asks the run to save and stop in time, then ends it as a signal from outside would, then kills it
  local end now stat fields
  trap '' TERM INT HUP
  printf -v now '%(%s)T' -1
  end=$((now + LAUNCHER_LIMIT))
  sleep_until "$((end - LAUNCHER_STOP_BEFORE))"
  echo "attempt $LAUNCHER_ATTEMPT, time limit, $LAUNCHER_STOP_BEFORE s" >"$LAUNCHER_RUN/.STOP" &&
    mv -f "$LAUNCHER_RUN/.STOP" "$LAUNCHER_RUN/STOP"
  sleep_until "$end"
  : >"$LAUNCHER_LOGS/limit"
  kill -TERM "$$"
  sleep_until "$((end + 5))"
  for stat in /proc/[0-9]*/stat; do
    read -r fields 2>/dev/null <"$stat" || continue
    # Its process group is that of this shell, which stays to record the end.
    case "${fields%% *}" in "$$" | "$BASHPID") continue ;; esac
    [[ ! ${fields##*) } =~ ^[A-Z]\ [0-9]+\ $$\  ]] || kill -KILL "${fields%% *}"
  done
}

sleep_until() { # seconds since 1970
  local now
  until printf -v now '%(%s)T' -1 && [ "$now" -ge "$1" ]; do sleep 1; done
}

relay_stop() { # subshell's pid: signals its children when the run is asked to stop; a bare script has no wrapper
  local pids=()
  until [ -e "$LAUNCHER_RUN/STOP" ]; do sleep 1; done
  read -ra pids <"/proc/$1/task/$1/children" # which has no end of line
  [ "${#pids[@]}" -gt 0 ] || return
  : >"$LAUNCHER_LOGS/.asked"
  if declare -F start_nodes >/dev/null; then
    signal_steps "$LAUNCHER_STOP_SIGNAL" # a srun that gets TERM kills all
  else
    kill -s "$LAUNCHER_STOP_SIGNAL" "${pids[@]}"
  fi
}

# A script has ended after a request to stop: record that, as its wrapper does where it can. It can't of a bare script,
# nor can anything of one that ended by itself at a TERM of Slurm's to all steps of the job, or of a trainer that was
# still starting.
mark_stopped() {
  local why=${LAUNCHER_ASKED:-request}
  [ -z "$LAUNCHER_SIGNALLED" ] && [ "$LAUNCHER_EXIT" != 137 ] && [ ! -e "$LAUNCHER_LOGS/stopped.json" ] || return
  [ -e "$LAUNCHER_LOGS/.asked" ] ||
    { [ "${LAUNCHER_ASKED-}" = preemption ] && declare -F start_nodes >/dev/null; } || return
  ! grep -qs ", time limit" "$LAUNCHER_RUN/STOP" || why="time limit"
  printf '{"schema": 1, "checkpoint": null, "step": null, "saved": false, "why": "%s", "time": "%s"}\n' \
    "$why" "$(now)" >"$LAUNCHER_LOGS/.stopped" && mv "$LAUNCHER_LOGS/.stopped" "$LAUNCHER_LOGS/stopped.json"
}

end_attempt() { # the run's last state, by the exit code and what lies in its folder
  local code=$LAUNCHER_EXIT ended overdue='' saved lack=''
  trap '' USR1 USR2
  ended="\"$(now)\""
  if [ "$LAUNCHER_QUEUE" = slurm ] && [ -z "$LAUNCHER_SIGNALLED" ] &&
    { [ "$code" != 0 ] || [ -e "$LAUNCHER_LOGS/stopped.json" ]; }; then
    hear_late
  fi
  mark_stopped
  if [ -e "$LAUNCHER_LOGS/overdue" ]; then
    overdue="did not end within $(cat "$LAUNCHER_LOGS/overdue") s of SIG$LAUNCHER_STOP_SIGNAL and was killed"
  fi
  [ "$code" = 0 ] || lack=$(lack_of_memory "$code")
  if taken_over; then
    exit 1
  elif [ "$code" = 0 ] && ! ended_on_request && has_result; then
    [ -z "${LAUNCHER_RATE-}" ] || write_rate
    status "done" 0 "$ended" ""
  elif [ "$code" = 0 ] && [ -n "${LAUNCHER_UP-}" ]; then
    end_of_up "$ended"
  elif [ -e "$LAUNCHER_RUN/cancelled" ]; then
    status cancelled "$code" "$ended" "${overdue:+the script }${overdue:-cancelled}"
    [ "$code" != 0 ] || code=85 # a script may exit with 0 when it is ended, but runs after it must not start
  elif [ "$LAUNCHER_QUEUE" = slurm ] && [ -n "$LAUNCHER_SIGNALLED" ]; then
    # Not the last word: Slurm may start the run again.
    saved=$(saved_state)
    status interrupted "$code" "$ended" "$(ended_by_slurm)${saved:+; $saved}"
  elif [ "$LAUNCHER_QUEUE" = slurm ] && asked_by_slurm; then
    end_for_slurm "$ended"
    [ "$code" != 0 ] || code=85 # likewise
  elif [ -e "$LAUNCHER_LOGS/stopped.json" ]; then
    rm -f "$LAUNCHER_RUN/STOP"
    status stopped "$code" "$ended" "${overdue:+a rank of the script $overdue}" # else the marker says at which step
    code=85 # likewise; and torchrun ends with 1 where its ranks end with that
  elif [ -n "$overdue" ]; then
    status failed "$code" "$ended" "the script $overdue"
  elif [ -e "$LAUNCHER_LOGS/left" ]; then
    status failed "$code" "$ended" "a rank failed, and another node did not end within 60 s"
  elif [ "$LAUNCHER_QUEUE" = slurm ] && [ "$code" = 137 ]; then
    status interrupted "$code" "$ended" "the $LAUNCHER_WHO was killed by signal 9$lack"
  elif [ -e "$LAUNCHER_LOGS/limit" ]; then
    rm -f "$LAUNCHER_RUN/STOP"
    status failed "$code" "$ended" "time limit; it did not end within $LAUNCHER_STOP_BEFORE s of the request to save and stop"
  elif [ -n "$LAUNCHER_SIGNALLED" ]; then
    status failed "$code" "$ended" "ended by a signal from outside"
  elif [ "$code" = 0 ]; then
    status failed 0 "$ended" "the $LAUNCHER_WHO ended with exit code 0 and left no result"
    code=1
  elif [ -n "$LAUNCHER_ENGINE" ] && [ "$code" -ge 125 ] && [ "$code" -le 127 ]; then
    status failed "$code" "$ended" "$LAUNCHER_ENGINE could not start the container or what runs in it (exit code $code)"
  elif [ "$code" -gt 128 ] && [ "$code" -le 192 ]; then # there are 64 signals; Apptainer's own errors end with 255
    status failed "$code" "$ended" "the $LAUNCHER_WHO was killed by signal $((code - 128))$lack"
  elif [ "$LAUNCHER_WHO" = comparison ]; then
    status failed "$code" "$ended" "not every arm could be measured"
  elif [ "$LAUNCHER_WHO$code" = trainer2 ]; then
    status failed 2 "$ended" "the trainer refused its settings"
  else
    status failed "$code" "$ended" "the $LAUNCHER_WHO ended with exit code $code$lack"
  fi
  [ -z "${LAUNCHER_AGAIN_BECAUSE-}" ] || start_again "$ended"
  leave_attempt "$code"
}

write_rate() ( # as result.json, the number behind LAUNCHER_RATE that the script printed last
  local line rate='"why": "no number follows train.rate in its output"'
  line=$(grep -ahF -- "$LAUNCHER_RATE" "$LAUNCHER_LOGS"/std{out,err}.log | tail -n 1)
  [[ ! ${line##*"$LAUNCHER_RATE"} =~ ^[[:space:]:=]*((0|[1-9][0-9]*)(\.[0-9]+)?) ]] ||
    rate="\"unit\": \"samples/s\", \"mean\": ${BASH_REMATCH[1]}"
  [ -z "$LAUNCHER_SHARED" ] || umask 027
  printf '{"schema": 1, "status": "done", "attempts": %s, "throughput": {%s}}\n' "$LAUNCHER_ATTEMPT" "$rate" \
    >"$LAUNCHER_RUN/.result.json" && mv -f "$LAUNCHER_RUN/.result.json" "$LAUNCHER_RUN/result.json"
)

leave_attempt() { # exit code: the state is written
  ! declare -F notice_of_end >/dev/null || notice_of_end
  if [ -n "$LAUNCHER_SECRETS" ]; then # a job that Slurm starts again needs them
    grep -qE '"state": "(requeued|interrupted)"' "$LAUNCHER_RUN/status.json" ||
      rm -rf "${LAUNCHER_RUN:?}/$LAUNCHER_SECRETS"
  fi
  rm -f "$LAUNCHER_RUN/.reserve"
  [ "$LAUNCHER_QUEUE" != slurm ] || release_job
  exit "$1"
}

end_of_up() { # end
  local why="a signal from outside"
  if [ -e "$LAUNCHER_RUN/cancelled" ]; then
    why=down
  elif grep -qs "time limit" "$LAUNCHER_RUN/STOP"; then
    why="its time limit"
  elif grep -qs preemption "$LAUNCHER_RUN/STOP"; then
    why="a preemption"
  elif [ -e "$LAUNCHER_RUN/STOP" ]; then
    why="a request to stop"
  fi
  rm -f "$LAUNCHER_RUN/STOP"
  status "done" 0 "$1" "ended by $why"
}

ended_on_request() { # a user's script may then have exit code 0
  [ ! -e "$LAUNCHER_LOGS/stopped.json" ] || return 0
  [ "$LAUNCHER_WHO" = script ] || return
  # One without a stop signal is ended by TERM, which it may handle.
  [ -n "$LAUNCHER_SIGNALLED" ] || { [ -z "$LAUNCHER_STOP_SIGNAL" ] && [ -e "$LAUNCHER_RUN/cancelled" ]; }
}

# What this attempt's trainer wrote last: an engine that could not start it may end with 0 too.
has_result() { [ -z "$LAUNCHER_RESULT" ] || grep -qsw "\"attempts\": $LAUNCHER_ATTEMPT" "$LAUNCHER_RUN/result.json"; }
