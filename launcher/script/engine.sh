# shellcheck shell=bash
# A container of Docker's or podman's. It is the engine's child and outlives its client: a client that is killed leaves
# it running, with its GPUs, so it is ended by its name.
#
# run.sh defines remove_container; under Slurm stop_container, which ends the container after $LAUNCHER_GRACE seconds;
# and where the client's exit code can't be trusted ask_exit_code, which prints the container's own.

defined() { declare -F "$1" >/dev/null; }

remove_stale_container() { # of an attempt that was killed with its script; asking the engine takes time
  [ "$LAUNCHER_ATTEMPT" = 1 ] || remove_container >/dev/null 2>&1
}

# Slurm kills what is left KillWait seconds after its TERM, but not the container: so that ends before.
end_container() {
  local wait
  defined stop_container || return
  wait=$(scontrol show config | sed -n 's/^KillWait *= *\([0-9]*\).*/\1/p')
  LAUNCHER_GRACE=$((${wait:-30} / 2)) stop_container
} >/dev/null 2>&1

container_exit_code() { # in $LAUNCHER_EXIT, which is the client's
  local printed
  defined ask_exit_code || return
  case $LAUNCHER_EXIT in
    12[567]) ;; # the container could not be created or started; asked about one that never started, podman says 0
    *) printed=$(ask_exit_code 2>/dev/null) && LAUNCHER_EXIT=${printed:-$LAUNCHER_EXIT} ;;
  esac
}

remove_left_container() { # one whose client succeeded is gone, unless it stays to be asked
  if defined ask_exit_code || [ "$LAUNCHER_EXIT" != 0 ]; then remove_container >/dev/null 2>&1; fi
}

supervise_container_on_node() { # in place of an exec of the client: this shell has to outlive it
  trap 'trap "" TERM INT HUP; end_container &' TERM INT HUP
  trainer &
  local child=$!
  LAUNCHER_EXIT=137
  while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    LAUNCHER_EXIT=$?
  done
  container_exit_code
  remove_left_container
  exit "$LAUNCHER_EXIT"
}
