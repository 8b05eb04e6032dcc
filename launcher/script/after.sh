# shellcheck shell=bash
# after= where no scheduler queues: wait until the runs named in RUN/after have ended, a line each: how it has to end,
# ok or any, and its folder.

wait_for_others() {
  local others line other other_is
  [ -e "$LAUNCHER_RUN/after" ] || return 0
  mapfile -t others <"$LAUNCHER_RUN/after"
  for line in "${others[@]}"; do
    other=${line#* }
    other_state "$other"
    [ "$other_is" != waits ] || status queued null null "waiting for ${other##*/}, which it comes after"
    while [ "$other_is" = waits ]; do
      sleep 1
      end_if_unwanted
      other_state "$other"
    done
    if [ "$other_is" != "done" ] && [ "${line%% *}" != any ]; then
      status cancelled null "\"$(now)\"" "it never started: it was to come after ${other##*/}, which $other_is"
      rm -f "$LAUNCHER_RUN/.reserve"
      exit 1
    fi
  done
  rm -f "$LAUNCHER_RUN/after" # a resumed run does not wait again
  LAUNCHER_STARTED=$(now)
}

other_state() { # folder of a run: in $other_is waits, done, or how else it ended
  local status submission
  for _ in 1 2; do # a process that is gone may have written its last state since it was read
    if [ ! -d "$1" ]; then
      other_is="is gone"
      return
    elif [ ! -O "$1" ]; then
      other_is="is not $(id -un)'s"
      return
    fi
    submission=$(cat "$1/submission.json" 2>/dev/null)
    status=$(cat "$1/status.json" 2>/dev/null)
    if [[ $status =~ ^\{\"schema\":\ 1,\ \"state\":\ \"([a-z]+)\",\ \"attempt\":\ ([0-9]+) ]] &&
      [ "${BASH_REMATCH[2]}" -ge "$(first_attempt "$1")" ]; then
      other_is=${BASH_REMATCH[1]}
      [ ! -e "$1/cancelled" ] || [ "$other_is" = "done" ] || [ "$other_is" = running ] || other_is=cancelled
      case $other_is in
        done) return ;;
        failed) other_is=failed && return ;;
        stopped | cancelled) other_is="is $other_is" && return ;;
      esac
    else # its status is of an attempt before the newest submission
      status=$submission
    fi
    other_is=waits
    ! process_lives "$status" || return 0
  done
  other_is="is lost"
  [ ! -e "$1/cancelled" ] || other_is="is cancelled"
}

process_lives() { # text that names a process
  local pid start stat
  [[ $1 =~ \"boot\":\ \"([^\"]*)\" ]] && [ "${BASH_REMATCH[1]}" = "$LAUNCHER_BOOT" ] || return
  [[ $1 =~ \"pid\":\ ([0-9]+) ]] && pid=${BASH_REMATCH[1]} || return
  [[ $1 =~ \"start\":\ ([0-9]+) ]] && start=${BASH_REMATCH[1]} || return
  read_stat "$pid" || return
  [ "${stat[19]}" = "$start" ] && [ "${stat[0]}" != Z ]
}
