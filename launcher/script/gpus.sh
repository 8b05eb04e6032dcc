# shellcheck shell=bash
# A run's GPUs on a host that has no scheduler to give them: taken when it starts, for this run alone.

take_gpus() { # count, UUIDs to choose from, run id, yes to wait: their indices in $gpus; without them the run ends
  local pause=1 second
  until gpu_take "$1" "$2" "$3"; do
    end_if_unwanted
    if [ -z "${LAUNCHER_WAIT-}$4" ]; then
      status failed null "\"$(now)\"" "$refusal"
      rm -f "$RUN/.reserve"
      tell_sweep refused
      exit 75 # which the launcher and the sweep's driver know
    fi
    status queued null null "$refusal"
    for ((second = 0; second < pause; second++)); do
      sleep 1
      end_if_unwanted
    done
    pause=$((pause < 16 ? 2 * pause : 16))
  done
  echo "$gpus" >"$logs/gpus"
  tell_sweep taken
}

tell_sweep() { # taken or refused: to sweep.sh, which starts the next cell then
  [ -z "${LAUNCHER_TURN-}" ] || { echo "$LAUNCHER_TURN $1" >&9 && exec 9>&-; }
}
