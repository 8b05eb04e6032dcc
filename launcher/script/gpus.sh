# shellcheck shell=bash
# A run's GPUs on a host that has no scheduler to give them: taken when it starts, for this run alone.

# Their indices are in $LAUNCHER_GPUS then; a run that can't have them, and does not wait, ends.
take_gpus() { # count, UUIDs to choose from, run id, yes to wait
  local pause=1 second
  until gpu_take "$1" "$2" "$3"; do
    end_if_unwanted
    if [ -z "${LAUNCHER_WAIT-}$4" ]; then
      status failed null "\"$(now)\"" "$LAUNCHER_REFUSAL"
      rm -f "$LAUNCHER_RUN/.reserve"
      tell_sweep refused
      exit 75 # which the launcher and the sweep's driver know
    fi
    status queued null null "$LAUNCHER_REFUSAL"
    for ((second = 0; second < pause; second++)); do
      sleep 1
      end_if_unwanted
    done
    pause=$((pause < 16 ? 2 * pause : 16))
  done
  echo "$LAUNCHER_GPUS" >"$LAUNCHER_LOGS/gpus"
  tell_sweep taken
}

tell_sweep() { # taken or refused: to sweep.sh, which starts the next cell then
  [ -z "${LAUNCHER_CELL-}" ] || { echo "$LAUNCHER_CELL $1" >&9 && exec 9>&-; }
}
