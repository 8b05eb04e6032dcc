# shellcheck shell=bash
# notify=: what its command is told lies in the attempt's folder as notice-EVENT.json. Whoever renames that to
# told-EVENT.json starts the command, so that it is never started twice: the launcher that waits for the run where it was
# submitted, else this script.
#
# run.sh sets LAUNCHER_NOTIFY, the argument list; LAUNCHER_NOTICE, the first members of each notice; LAUNCHER_SWEEP, the
# sweep of the run, or empty; LAUNCHER_HIDDEN, files whose text no notice may have.

LAUNCHER_TELLING=20 # seconds that the command has
LAUNCHER_WAITING=30 # seconds since the launcher that waits was last heard of

notice() { # ended, hung or preempted; words for people, as JSON has them; further members, or empty
  local file=$LAUNCHER_LOGS/notice-$1.json
  [ ! -e "$file" ] && [ ! -e "$LAUNCHER_LOGS/told-$1.json" ] || return 0
  write_notice "$file" "$(printf '"event": "%s", %s, "text": "%s", %s"status": %s, "result": %s' "$1" \
    "$LAUNCHER_NOTICE" "${LAUNCHER_RUN##*/} $2" "$3" "$(record_of "$LAUNCHER_RUN/status.json")" "$(result_of "$LAUNCHER_RUN")")"
  tell "$file"
}

notice_of_end() { # the run has ended, or is in a state from which Slurm may start it again
  local state='' reason
  [[ $(cat "$LAUNCHER_RUN/status.json") =~ \"state\":\ \"([a-z]+)\" ]] && state=${BASH_REMATCH[1]}
  reason=$(sed -n 's/.*"reason": "\(.*\)", "process".*/\1/p' "$LAUNCHER_RUN/status.json")
  case $state in
    requeued) return ;;
    interrupted)
      case $reason in
        preempted*) notice preempted "is $reason" '' && return ;;
        "cancelled in Slurm"* | "time limit"*) ;;
        *) return ;;
      esac
      ;;
    failed) reason=$(reason_of_failure "$reason") ;;
  esac
  if [ -n "$LAUNCHER_SWEEP" ]; then
    notice_of_sweep
  else
    notice ended "$state${reason:+: $reason}" ''
  fi
}

notice_of_sweep() { # by the last of its runs that ends; of a search, by the launcher that asks for its trials
  local root=${LAUNCHER_RUN%/*} cells cell count text='' runs='' state status attempts=()
  [ ! -e "$root/.sweeps/$LAUNCHER_SWEEP/search.json" ] || return 0
  declare -A count=()
  cells=("$root/$LAUNCHER_SWEEP"-*/)
  for cell in "${cells[@]%/}"; do
    status=$(record_of "$cell/status.json")
    ended_as "$cell" "$status" || return 0
    count[$state]=$((${count[$state]:-0} + 1))
    runs+="${runs:+, }{\"run\": \"${cell##*/}\", \"state\": \"$state\", \"status\": $status, \"result\": $(result_of "$cell")}"
    attempts+=("$cell"/attempts/[0-9]*)
  done
  # Each start of runs of the sweep has an end of its own; the first to see it tells.
  mkdir "${cells[0]%/}/attempts/.told-${#attempts[@]}" 2>/dev/null || return 0
  for state in "done" failed stopped cancelled; do
    [ -z "${count[$state]-}" ] || text+="${text:+, }${count[$state]} $state"
  done
  write_notice "$LAUNCHER_LOGS/notice-ended.json" "$(printf '"event": "ended", "sweep": "%s", "text": "%s: %s", "runs": [%s]' \
    "$LAUNCHER_SWEEP" "$LAUNCHER_SWEEP" "$text" "$runs")"
  tell "$LAUNCHER_LOGS/notice-ended.json"
}

ended_as() { # folder, its status: in $state how the run ended; fails where it has not
  local first
  first=$(first_attempt "$1")
  state=cancelled
  if [[ $2 =~ \"state\":\ \"([a-z]+)\",\ \"attempt\":\ ([0-9]+) ]] && [ "${BASH_REMATCH[2]}" -ge "$first" ]; then
    state=${BASH_REMATCH[1]}
    [ "$state" != interrupted ] || [[ ! $2 =~ \"reason\":\ \"(cancelled in Slurm|time limit) ]] || state=failed
    case $state in "done" | failed | stopped | cancelled) return 0 ;; esac
    return 1
  fi
  [ -e "$1/cancelled" ]
}

record_of() { # file
  local text
  text=$(cat "$1" 2>/dev/null)
  echo "${text:-null}"
}

result_of() { # folder: that of its last attempt, or null
  local attempt=none
  [[ $(cat "$1/status.json" 2>/dev/null) =~ \"attempt\":\ ([0-9]+) ]] && attempt=${BASH_REMATCH[1]}
  if grep -qsw "\"attempts\": $attempt" "$1/result.json"; then record_of "$1/result.json"; else echo null; fi
}

reason_of_failure() { # the one in the status: what the trainer itself left
  local file reason=''
  for file in "$LAUNCHER_LOGS/failed.json" "$LAUNCHER_RUN/result.json"; do
    [ "${file##*/}" = failed.json ] || grep -qsw "\"attempts\": $LAUNCHER_ATTEMPT" "$file" || continue
    [ -n "$reason" ] || reason=$(sed -n 's/^ *"reason": "\(.*\)",\{0,1\}$/\1/p' "$file" 2>/dev/null | head -n 1)
  done
  echo "${reason:-$1}"
}

write_notice() { # file, its members
  local text=$2 file hidden
  for file in ${LAUNCHER_HIDDEN[@]+"${LAUNCHER_HIDDEN[@]}"}; do
    hidden=$(cat "$file" 2>/dev/null)
    [ -z "$hidden" ] || text=${text//"$hidden"/***}
  done
  printf '{"schema": 1, %s}\n' "$text" >"$LAUNCHER_LOGS/.notice" && mv "$LAUNCHER_LOGS/.notice" "$1"
}

tell() { # notice: behind the run, but while a Slurm job lasts, with which all its processes end
  ! waiter_lives || return 0
  mv "$1" "${1/notice-/told-}" 2>/dev/null || return 0
  # shellcheck disable=SC2016
  setsid env -i HOME="${HOME-/}" PATH="$PATH" USER="$(id -un)" LANG="${LANG-C.UTF-8}" bash -c '
    for held in /proc/self/fd/*; do
      held=${held##*/}
      [ "$held" -le 2 ] || [ "$held" = 255 ] || exec {held}>&-
    done
    timeout -k 2 "$1" "${@:2}" || echo "the command of notify= ended with exit code $?"
  ' tell "$LAUNCHER_TELLING" "${LAUNCHER_NOTIFY[@]}" <"${1/notice-/told-}" >>"$LAUNCHER_LOGS/notify.log" 2>&1 &
  [ "$LAUNCHER_QUEUE" != slurm ] || wait "$!"
}

waiter_lives() { # by the clock of the file system that both write to
  local heard now
  heard=$(stat -c %Y "$LAUNCHER_RUN/.waits" 2>/dev/null) || return 1
  : >"$LAUNCHER_LOGS/.now" && now=$(stat -c %Y "$LAUNCHER_LOGS/.now") && rm -f "$LAUNCHER_LOGS/.now"
  [ "$((now - heard))" -lt "$LAUNCHER_WAITING" ]
}

tell_of_hang() { # beside the run: once ranks have left where they wait
  local ranks=() found=''
  trap '' TERM INT HUP
  until compgen -G "$LAUNCHER_LOGS/hang-rank*.json" >/dev/null; do sleep 2; done
  sleep 3 # the others
  for rank in "$LAUNCHER_LOGS"/hang-rank*.json; do found+="${found:+, }$(cat "$rank")" && ranks+=("$rank"); done
  notice hung "takes no step, on ${#ranks[@]} of its ranks" "\"ranks\": [$found], "
}
