# shellcheck shell=bash
# GPUs for an interactive shell, taken as a run takes them.

take_gpus_for_shell() { # count, UUIDs to choose from, yes to wait: their indices in $LAUNCHER_GPUS
  local reported=
  until gpu_take "$1" "$2" shell; do
    if [ -z "$3" ]; then
      echo "error: $LAUNCHER_REFUSAL (gpus=0 opens a shell without GPUs, wait_gpus=true waits for them)" >&2
      exit 3
    fi
    [ "$LAUNCHER_REFUSAL" = "$reported" ] || echo "waiting: $LAUNCHER_REFUSAL" >&2
    reported=$LAUNCHER_REFUSAL
    sleep 2
  done
}
