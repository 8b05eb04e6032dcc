# shellcheck shell=bash
# GPUs for an interactive shell, taken as a run takes them.

take_gpus_for_shell() { # count, UUIDs to choose from, yes to wait: their indices in $gpus
  local reported=
  until gpu_take "$1" "$2" shell; do
    if [ -z "$3" ]; then
      echo "error: $refusal (gpus=0 opens a shell without GPUs, wait_gpus=true waits for them)" >&2
      exit 3
    fi
    [ "$refusal" = "$reported" ] || echo "waiting: $refusal" >&2
    reported=$refusal
    sleep 2
  done
}
