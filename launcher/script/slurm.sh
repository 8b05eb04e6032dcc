# shellcheck shell=bash
# What only a Slurm job has: it is asked to save before its time limit or a preemption, requeued, and started on its
# nodes.

# What sbatch was told to export, nothing. An srun of the job would go by it, and start its programs without a PATH.
unset SLURM_EXPORT_ENV

# Slurm's own log of this job, to which slurmstepd writes why it ends an attempt, and where this attempt's part begins.
LAUNCHER_JOB_LOG=$(readlink "/proc/$$/fd/1")
LAUNCHER_JOB_LOG_SIZE=$(stat -c %s "$LAUNCHER_JOB_LOG" 2>/dev/null)

explain_last_attempt() { # one that could not record its own end: its node failed, or its shell was killed
  local last=$((LAUNCHER_ATTEMPT - 1)) row state nodes reason
  [ "$last" -gt 0 ] && [ ! -e "$LAUNCHER_RUN/attempts/$last/ended.json" ] || return 0
  # Rows of earlier attempts, then that of this one.
  row=$(timeout 30 sacct --allocations --noheader --parsable2 --duplicates --jobs="$(job_id)" \
    --format=State,NodeList 2>/dev/null | tail -n 2)
  IFS='|' read -r state nodes <<<"${row%%$'\n'*}"
  [ "${row%%$'\n'*}" != "$row" ] || state=''
  case $state in
    NODE_FAIL) reason=$(failed_node "$nodes") ;;
    PREEMPTED) reason="preempted" ;;
    TIMEOUT) reason="time limit" ;;
    OUT_OF_MEMORY) reason="it used more memory than it had asked for (cluster.mem)" ;;
    REQUEUED) reason="requeued in Slurm" ;;
    "") reason="it left no status, and Slurm's accounting does not say why" ;;
    *) reason="Slurm calls it ${state//[^A-Za-z0-9_ ]/}" ;;
  esac
  printf '{"schema": 1, "state": "interrupted", "attempt": %s, "reason": "%s"}\n' "$last" \
    "${reason//[^A-Za-z0-9_ .,\'()\[\]-]/}" >"$LAUNCHER_LOGS/.last" &&
    mv "$LAUNCHER_LOGS/.last" "$LAUNCHER_RUN/attempts/$last/ended.json"
}

failed_node() { # nodes of an attempt: which of them failed, in words
  local nodes
  mapfile -t nodes < <(scontrol show hostnames "$1" 2>/dev/null)
  [ "${#nodes[@]}" = 1 ] ||
    mapfile -t nodes < <(timeout 30 sinfo --noheader --Node --nodes="$1" --states=down --format=%N 2>/dev/null | sort -u)
  case ${#nodes[@]} in
    0) echo "its node failed (one of $1)" ;;
    1) echo "its node ${nodes[0]} failed" ;;
    *) (IFS=, && echo "its nodes ${nodes[*]} failed") ;;
  esac
}

clear_stale_stop() { # of an earlier attempt's time limit or preemption
  case $(cat "$LAUNCHER_RUN/STOP" 2>/dev/null) in "attempt "*) rm -f "$LAUNCHER_RUN/STOP" ;; esac
}

# Before the time limit Slurm signals this shell alone: the container and the trainer never see the signal.
stop_before_end() { # yes, or empty for a job that can't be asked to save and stop
  LAUNCHER_ASKED=
  if [ -n "$1" ]; then
    trap 'ask_to_stop "time limit"' USR1
    trap 'ask_to_stop preemption' USR2
  else
    trap '' USR1 USR2
  fi
}

# At the beginning of a preemption's grace time Slurm sends TERM to a job's steps, and neither to this shell nor to what
# it started. So a step waits for that, on this node, and takes no resources of its own. On a busy cluster it begins late,
# and asks whether TERM came before it. srun would take what the job asked for, its GPUs too, from variables.
hear_preemption() {
  local job name
  job=$(job_id)
  (
    for name in "${!SLURM_@}" "${!SRUN_@}"; do
      case $name in SLURM_CONF | SLURM_JOB_ID) ;; *) unset "$name" ;; esac
    done
    exec srun --overlap --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" --mem=0 --gres=none --mpi=none --cpu-bind=none \
      bash -c 'trap "kill -USR2 $1; exit" TERM
        case $(timeout 10 scontrol --oneliner show job "$2") in *" PreemptTime="[1-9]*) kill -USR2 "$1" && exit ;; esac
        sleep infinity & wait' hear "$$" "$job" </dev/null >/dev/null 2>&1
  ) &
  LAUNCHER_HEARING=$!
}

# After a rank has failed, its own torchrun ends the others of its node. A node whose ranks are halted, or wait for it for
# ever, would keep the job until its time limit.
end_left_nodes() {
  local failed
  trap '' TERM INT HUP
  until [ -e "$LAUNCHER_LOGS/failed.json" ]; do sleep 1; done
  printf -v failed '%(%s)T' -1
  sleep_until "$((failed + 60))"
  : >"$LAUNCHER_LOGS/left"
  signal_steps KILL
}

signal_steps() { # signal: to every process that srun has started
  local step
  for step in $(timeout 30 squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i); do
    case $step in *.[0-9]*) scancel --signal="$1" "$step" ;; esac
  done
}

ask_to_stop() { # why, as far as is known before Slurm is asked
  local job left=''
  [ ! -e "$LAUNCHER_RUN/STOP" ] || return 0
  LAUNCHER_ASKED=$1
  write_stop
  job=$(timeout 10 scontrol --oneliner show job "$(job_id)" 2>/dev/null)
  [ -n "$job" ] || return 0
  case $job in
    *" PreemptTime="[1-9]*) LAUNCHER_ASKED=preemption ;;
    *) [ "$1" != preemption ] || LAUNCHER_ASKED="signal TERM" ;;
  esac
  [[ ! $job =~ \ EndTime=([0-9T:-]+) ]] || left=$(($(date -d "${BASH_REMATCH[1]}" +%s) - $(date +%s)))
  [ ! -e "$LAUNCHER_RUN/STOP" ] || write_stop "$left"
  [ "$LAUNCHER_ASKED" != preemption ] || ! declare -F notice >/dev/null || notice preempted "is preempted" '' &
}

hear_late() { # at an attempt's end: its ranks hear Slurm's TERM too, and may end before the step that waits for it acts
  [ -z "${LAUNCHER_ASKED-}" ] || return 0
  [[ $(timeout 10 scontrol --oneliner show job "$(job_id)" 2>/dev/null) = *" PreemptTime="[1-9]* ]] || return 0
  LAUNCHER_ASKED=preemption
  ! declare -F notice >/dev/null || notice preempted "is preempted" '' &
}

write_stop() { # seconds left
  local left=''
  [ "${1:-0}" -le 0 ] || left=", $1 s"
  echo "attempt $LAUNCHER_ATTEMPT, $LAUNCHER_ASKED$left" >"$LAUNCHER_RUN/.STOP" &&
    mv -f "$LAUNCHER_RUN/.STOP" "$LAUNCHER_RUN/STOP"
}

job_id() { # the plain id of an array's job can be the whole array
  local job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
  echo "${job:-$SLURM_JOB_ID}"
}

release_job() { # where slurmstepd was killed, Slurm does not see this script end, and keeps its nodes
  local stat
  read_stat "$$"
  [ "${stat[1]}" = "$PPID" ] || scancel "$(job_id)"
}

ended_by_slurm() { # why Slurm sent TERM to the whole job, as slurmstepd wrote it
  local line
  line=$(tail -c "+$((${LAUNCHER_JOB_LOG_SIZE:-0} + 1))" "$LAUNCHER_JOB_LOG" 2>/dev/null |
    grep -a '\*\*\* JOB .* CANCELLED AT ' | tail -n 1)
  case $line in
    *"DUE TO PREEMPTION"*) preempted ;;
    *"DUE TO TIME LIMIT"*) echo "time limit" ;;
    *"DUE TO JOB REQUEUE"*) echo "requeued in Slurm" ;;
    *"DUE TO NODE FAILURE"*) echo "its node failed" ;;
    *"CANCELLED AT"*) echo "cancelled in Slurm" ;;
    *) echo "ended by Slurm's signal: a time limit, a preemption or scancel" ;;
  esac
}

preempted() { # by which job, where Slurm shows that one alone is planned on a node of this job
  local by=()
  for _ in 1 2 3; do # a planned job has no nodes for a moment while Slurm plans again
    mapfile -t by < <(planned_here)
    [ "${#by[@]}" = 0 ] || break
    sleep 1
  done
  [ "${#by[@]}" = 1 ] || by=()
  echo "preempted${by[0]+ by ${by[0]}}"
} 2>/dev/null

planned_here() { # pending jobs that Slurm has planned on a node of this job
  local job user partition nodes node
  while read -r job user partition nodes; do
    [[ $nodes != *null* && "$job$user$partition" =~ ^[A-Za-z0-9_.@+-]+$ ]] || continue
    for node in $(scontrol show hostnames "$nodes"); do
      [[ " $(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\n' ' ')" != *" $node "* ]] || {
        echo "job $job ($user, partition $partition)" && break
      }
    done
  done < <(timeout 10 squeue --noheader --states=PENDING --Format=JobID:24,UserName:40,Partition:40,SchedNodes:200)
}

set_rendezvous() { # LAUNCHER_WORKERS, HOST:PORT of each node in Slurm's order; MASTER_ADDR and MASTER_PORT, the first's
  local slot=$SLURM_JOB_ID node address
  # Resolved here, where Slurm's programs are. Ports follow from the job, so that no two jobs share one, and are below
  # those of outgoing connections. They differ, as addresses may not.
  LAUNCHER_WORKERS=
  for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    address=$(node_address "$node")
    if [ -z "$LAUNCHER_WORKERS" ]; then # on this node, a port that another program listens on is passed over
      while (: <"/dev/tcp/$address/$((20000 + slot % 12000))") 2>/dev/null; do slot=$((slot + 997)); done
      export MASTER_ADDR=$address MASTER_PORT=$((20000 + slot % 12000))
    fi
    LAUNCHER_WORKERS+=${LAUNCHER_WORKERS:+,}$address:$((20000 + slot % 12000))
    slot=$((slot + 997))
  done
  export LAUNCHER_WORKERS
}

node_address() { # node
  local address
  address=$(scontrol --oneliner show node "$1" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
  echo "${address:-$1}"
}

asked_by_slurm() { # whether the attempt stopped for a time limit or a preemption
  case $LAUNCHER_ASKED in preemption | "time limit") ;; *) return 1 ;; esac
  [ -e "$LAUNCHER_LOGS/stopped.json" ] && ! grep -q '"why": "request"' "$LAUNCHER_LOGS/stopped.json"
}

has_checkpoint() { # whether another attempt would not start over
  [ "$LAUNCHER_WHO" != script ] || [ -n "$LAUNCHER_RESUMES" ] ||
    [ -n "$(find "$LAUNCHER_CHECKPOINT_DIR" -type f -print -quit)" ]
}

saved_state() { # what there is to resume from, in words
  local marker newest=''
  marker=$(cat "$LAUNCHER_LOGS/stopped.json" 2>/dev/null)
  if [[ $marker =~ \"step\":\ ([0-9]+) ]]; then
    newest=${BASH_REMATCH[1]}
  elif [ "$LAUNCHER_WHO" = trainer ]; then
    newest=$(find "$LAUNCHER_RUN/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -n 1)
    newest=${newest##*step-}
  elif [ "$LAUNCHER_WHO" = comparison ]; then
    return
  else
    [ -n "$(find "$LAUNCHER_CHECKPOINT_DIR" -type f -print -quit)" ] && newest=checkpoint || newest="no checkpoint"
    echo "$newest in LAUNCHER_CHECKPOINT_DIR"
    return
  fi
  [[ $newest =~ ^[0-9]+$ ]] && echo "checkpoint at step $((10#$newest))" || echo "no checkpoint"
}

end_for_slurm() { # end: after a request to stop that was not a person's
  local why saved requeued=("$LAUNCHER_RUN"/attempts/*/requeued)
  [ -e "${requeued[0]}" ] || requeued=()
  why=$LAUNCHER_ASKED
  [ "$why" != preemption ] || why=$(preempted)
  saved=$(saved_state)
  why+=${saved:+; $saved}
  if [ "$LAUNCHER_ASKED" = preemption ]; then # Slurm would start it again too, and does not count that
    requeue "$1" "$why"
  elif [ "${#requeued[@]}" -ge "$LAUNCHER_MAX_REQUEUES" ]; then
    why="${#requeued[@]} of $LAUNCHER_MAX_REQUEUES requeues used (cluster.max_requeues); $why"
    status stopped "$LAUNCHER_EXIT" "$1" "$why"
  elif ! has_checkpoint; then
    why+="; not requeued, as it would start over: save there, or set script.resume_arguments"
    status stopped "$LAUNCHER_EXIT" "$1" "$why"
  else
    : >"$LAUNCHER_LOGS/requeued"
    requeue "$1" "$why"
  fi
}

requeue() { # end, reason, state where Slurm refuses (stopped): continue in the same job
  rm -f "$LAUNCHER_RUN/STOP"
  status requeued "$LAUNCHER_EXIT" "$1" "$2"
  trap 'exclude_nodes; exit 0' TERM
  if scontrol requeue "$(job_id)"; then
    # Slurm ends this shell; exiting by itself would race with that.
    for _ in {1..60}; do sleep 1; done
  else
    rm -f "$LAUNCHER_LOGS/requeued"
    LAUNCHER_AGAIN_BECAUSE=
    unset -f restart_instead
    rm -f "$LAUNCHER_LOGS/restarted"
    status "${3:-stopped}" "$LAUNCHER_EXIT" "$1" "$2; Slurm refused to requeue it"
  fi
}

exclude_nodes() { # from the job that was put back: Slurm changes that of a waiting job alone
  local job excluded='' tries
  [ -n "${LAUNCHER_SILENT-}" ] || return 0
  job=$(timeout 10 scontrol --oneliner show job "$(job_id)" 2>/dev/null)
  [[ ! $job =~ \ ExcNodeList=([^ ]+) ]] || excluded=${BASH_REMATCH[1]}
  [ "$excluded" != "(null)" ] || excluded=
  for tries in {1..20}; do
    ! timeout 10 scontrol update JobId="$(job_id)" ExcNodeList="${excluded:+$excluded,}$LAUNCHER_SILENT" || return 0
    sleep 1
  done
  echo "could not exclude $LAUNCHER_SILENT in $tries tries" >&2
}
