# shellcheck shell=bash
# What only a Slurm job has: it is asked to save before its time limit, requeued, and started on its nodes.

clear_stale_stop() { # of an earlier attempt's time limit
  case $(cat "$LAUNCHER_RUN/STOP" 2>/dev/null) in "attempt "*) rm -f "$LAUNCHER_RUN/STOP" ;; esac
}

# Before the time limit Slurm signals this shell alone: the container and the trainer never see the signal.
stop_before_time_limit() { # yes, or empty for a job that can't be asked to save and stop
  LAUNCHER_ASKED=
  # shellcheck disable=SC2016 # expanded when the signal comes
  if [ -n "$1" ]; then
    trap '
      LAUNCHER_ASKED=yes
      [ -e "$LAUNCHER_RUN/STOP" ] || echo "attempt $LAUNCHER_ATTEMPT" >"$LAUNCHER_RUN/STOP"
    ' USR1
  else
    trap '' USR1
  fi
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

can_go_on() { # whether another attempt would not start over; what a script has saved is unknown
  [ "$LAUNCHER_WHO" != script ] || [ -n "$LAUNCHER_RESUMES" ] ||
    [ -n "$(find "$LAUNCHER_CHECKPOINT_DIR" -type f -newer "$LAUNCHER_RUN/.reserve" -print -quit)" ]
}

job_id() { # the plain id of an array's job can be the whole array
  local job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
  echo "${job:-$SLURM_JOB_ID}"
}

release_job() { # where slurmstepd was killed, Slurm does not see this script end, and keeps its nodes
  local fields
  read -r fields </proc/$$/stat
  # shellcheck disable=SC2206
  fields=(${fields##*) })
  [ "${fields[1]}" = "$PPID" ] || scancel "$(job_id)"
}

requeue() { # end: go on in the same job, from the state that was saved for the time limit
  local job saved="time limit, state saved" requeued=("$LAUNCHER_RUN"/attempts/*/requeued)
  [ "$LAUNCHER_WHO" != script ] || saved="time limit"
  [ -e "${requeued[0]}" ] || requeued=()
  if ! can_go_on; then
    saved+="; not requeued, as it would start over: save in LAUNCHER_CHECKPOINT_DIR, or set"
    saved+=" script.resume_arguments"
    status stopped "$LAUNCHER_EXIT" "$1" "$saved"
    return
  elif [ "${#requeued[@]}" -ge "$LAUNCHER_MAX_REQUEUES" ]; then
    status stopped "$LAUNCHER_EXIT" "$1" "$saved; not requeued, as cluster.max_requeues=$LAUNCHER_MAX_REQUEUES is reached"
    return
  fi
  job=$(job_id)
  rm -f "$LAUNCHER_RUN/STOP"
  : >"$LAUNCHER_LOGS/requeued"
  status requeued "$LAUNCHER_EXIT" "$1" "$saved; waiting to go on"
  trap 'exit 0' TERM
  if scontrol requeue "$job"; then
    # Slurm ends this shell; exiting by itself would race with that.
    for _ in {1..60}; do sleep 1; done
  else
    rm -f "$LAUNCHER_LOGS/requeued"
    status stopped "$LAUNCHER_EXIT" "$1" "$saved; Slurm refused to requeue it"
  fi
}
