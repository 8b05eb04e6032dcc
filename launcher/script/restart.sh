# shellcheck shell=bash
# restart.max=: what a hang, an error of NCCL or a node that does not end made fail is started again from its last
# checkpoint. Slurm itself starts again what it ended with a failed node or a preemption, and `end_if_in_vain` ends that.
#
# run.sh sets LAUNCHER_RESTARTS, how often that may be, empty for Slurm alone; LAUNCHER_HANGS, yes where a hang counts
# (watchdog.action=restart); LAUNCHER_PER_NODE, ranks on each node.
#
# attempts/N/restarted has the step and the checkpoint at which an attempt ended that another one followed, and a word
# where that was no restart that restart.max counts.

LAUNCHER_NCCL='NCCL error|nccl(Remote|System|Internal|UnhandledCuda)Error|Watchdog caught collective operation timeout'

restart_instead() { # reason of a failure: sets LAUNCHER_AGAIN_BECAUSE, else LAUNCHER_NOT_AGAIN where that is to be said
  local cause step saved before used same
  LAUNCHER_AGAIN_BECAUSE='' LAUNCHER_NOT_AGAIN=''
  [ "${LAUNCHER_RESTARTS:-0}" != 0 ] && [ ! -e "$LAUNCHER_RUN/STOP" ] && cause=$(cause_to_restart) || return 1
  look_back "$LAUNCHER_ATTEMPT"
  if [ "$saved" = none ] && [ -z "${LAUNCHER_RESUMES-}" ]; then
    LAUNCHER_NOT_AGAIN="there is no checkpoint, and it would start over"
  elif [ "$used" -ge "$LAUNCHER_RESTARTS" ]; then
    LAUNCHER_NOT_AGAIN="$used of $LAUNCHER_RESTARTS restarts used (restart.max)"
  elif [ "$step" != none ] && [ "$before" = "$step" ]; then
    LAUNCHER_NOT_AGAIN="it failed at step $step twice"
  elif [ "$same" -ge 2 ]; then
    LAUNCHER_NOT_AGAIN="three attempts made no progress"
  else
    echo "$step $saved" >"$LAUNCHER_LOGS/restarted"
    [ "$step" = none ] || cause+=" after step $step"
    LAUNCHER_AGAIN_BECAUSE="$cause; restart $((used + 1)) of $LAUNCHER_RESTARTS"
    LAUNCHER_SILENT=$(silent_nodes)
    LAUNCHER_AGAIN_BECAUSE+=${LAUNCHER_SILENT:+; $LAUNCHER_SILENT is excluded from it}
    return 0
  fi
  return 1
}

# Before an attempt that Slurm began, as the one before was ended with its node, or for another job: it starts only what
# an attempt may change. Of a script of which neither steps nor checkpoints are known no progress can be expected.
end_if_in_vain() {
  local last=$((LAUNCHER_ATTEMPT - 1)) ended why='' counted=slurm step saved before used same
  ended=$(cat "$LAUNCHER_RUN/attempts/$last/ended.json" 2>/dev/null)
  [[ $ended == *'"state": "interrupted"'* ]] && [ "$last" -ge "$(first_attempt "$LAUNCHER_RUN")" ] || return 0
  [[ $ended =~ \"reason\":\ \"([^\"]*) ]] && why=${BASH_REMATCH[1]}
  [[ $why != "its node"*failed* ]] || counted=''
  look_back "$last"
  if contradicted "$last"; then
    LAUNCHER_NOT_AGAIN="it did not run in the mode that it was asked for"
  elif [ -n "$LAUNCHER_RESTARTS" ] && [ -z "$counted" ] && [ "$used" -ge "$LAUNCHER_RESTARTS" ]; then
    LAUNCHER_NOT_AGAIN="$used of $LAUNCHER_RESTARTS restarts used (restart.max)"
  elif [ "$same" -ge 2 ] && { [ "$LAUNCHER_WHO" = trainer ] || [ "$step$saved" != nonenone ]; }; then
    LAUNCHER_NOT_AGAIN="three attempts made no progress"
  else
    echo "$step $saved $counted" >"$LAUNCHER_RUN/attempts/$last/restarted"
    return 0
  fi
  status failed null "\"$(now)\"" "$why; not restarted: $LAUNCHER_NOT_AGAIN"
  leave_attempt 1
}

look_back() { # attempt that ended: sets $step and $saved, where it left off; $before, the step at which the one before
  # it did; $used, how many restarts counted; $same, how many attempts before it left off at its checkpoint
  local number at place word
  step=$(grep -ao '"step": [0-9]*' "$LAUNCHER_RUN/metrics.jsonl" 2>/dev/null | tail -n 1)
  step=${step##* } saved=$(newest_checkpoint) before=none used=0 same=0
  step=${step:-none} saved=${saved:-none}
  for ((number = 1; number < $1; number++)); do
    read -r at place word 2>/dev/null <"$LAUNCHER_RUN/attempts/$number/restarted" || continue
    [ -n "$word" ] || used=$((used + 1))
    # Of a script that saves elsewhere its steps tell.
    if [ "$place" = "$saved" ] && { [ -z "$word" ] || [ "$saved" != none ] || [ "$at" = "$step" ]; }; then
      same=$((same + 1))
    else
      same=0
    fi
    before=$at
  done
}

contradicted() { # attempt: it ran in another mode, and would do so again
  grep -qsw "\"attempts\": $1" "$LAUNCHER_RUN/result.json" &&
    grep -q '"verdict": "contradicted"' "$LAUNCHER_RUN/result.json"
}

cause_to_restart() { # in words; fails where another start would change nothing
  local failed=$LAUNCHER_LOGS/failed.json hung=("$LAUNCHER_LOGS"/hang-rank*.json)
  ! contradicted "$LAUNCHER_ATTEMPT" || return 1
  [ -e "$failed" ] || failed=$LAUNCHER_LOGS/stderr.log # the first rank that failed tells why; the others lost it
  if [ -n "$LAUNCHER_HANGS" ] && [ -e "${hung[0]}" ] && ! moves_again; then
    echo "it took no step any more"
  elif [ -e "$LAUNCHER_LOGS/left" ]; then
    echo "a node did not end after a rank failed"
  elif tail -c 65536 "$failed" 2>/dev/null | grep -aqE "$LAUNCHER_NCCL"; then
    echo "NCCL error"
  else
    return 1
  fi
}

moves_again() { # whether it failed for another reason than the hang that it left records of
  [ -e "$LAUNCHER_LOGS/failed.json" ] && ! grep -q 'it took no step for' "$LAUNCHER_LOGS/failed.json"
}

newest_checkpoint() { # its name; of a script's own files, the time of the newest
  if [ "$LAUNCHER_WHO" = trainer ]; then
    find "$LAUNCHER_RUN/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' 2>/dev/null | sort | tail -n 1
  else
    find "${LAUNCHER_CHECKPOINT_DIR:-$LAUNCHER_RUN/checkpoints}" -type f -printf '%T@\n' 2>/dev/null | sort -n | tail -n 1
  fi
}

silent_nodes() { # of a Slurm job: those of ranks that left no word where others hang, while the partition has others
  local rank nodes=() silent=() up
  [ "$LAUNCHER_QUEUE" = slurm ] || return 0
  compgen -G "$LAUNCHER_LOGS/hang-rank*.json" >/dev/null || return 0
  mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  for ((rank = 0; rank < ${#nodes[@]} * LAUNCHER_PER_NODE; rank++)); do
    [ -e "$LAUNCHER_LOGS/hang-rank$rank.json" ] || silent+=("${nodes[rank / LAUNCHER_PER_NODE]}")
  done
  [ "${#silent[@]}" -gt 0 ] || return 0
  mapfile -t silent < <(printf '%s\n' "${silent[@]}" | sort -u)
  up=$(timeout 30 sinfo --noheader --Node --states=idle,mixed,allocated --partition="$SLURM_JOB_PARTITION" --format=%N |
    sort -u | wc -l)
  [ "$((up - ${#silent[@]}))" -lt "${#nodes[@]}" ] || (IFS=, && echo "${silent[*]}")
}

start_again() { # end of this attempt: in the same job, or in this process
  rm -f "$LAUNCHER_RUN/.reserve"
  if [ "$LAUNCHER_QUEUE" = slurm ]; then
    requeue "$1" "$LAUNCHER_AGAIN_BECAUSE" failed
    exit "$LAUNCHER_EXIT"
  fi
  trap - USR1 USR2 TERM INT HUP
  unset LAUNCHER_CELL # the sweep's next cell waits for it no more
  LAUNCHER_WAIT=yes exec bash "$LAUNCHER_RUN/run.sh"
}
