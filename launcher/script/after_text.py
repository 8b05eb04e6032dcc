"""The part of `run.sh` that waits for the runs which `after=` named, where no scheduler does."""

from __future__ import annotations

FILE = "after"
"""In a run's folder until it may start: how the others have to end, `ok` or `any`, then their folders, a line each."""

WAIT = (
    r"""
stands() { # folder of a run: how it stands, in $stood: waits, done, or how else it ended
  local status submission first look
  for look in 1 2; do # what is gone may have had its last word since it was read
    if [ ! -d "$1" ]; then
      stood="is gone"
      return
    elif [ ! -O "$1" ]; then
      stood="is not $(id -un)'s"
      return
    fi
    submission=$(cat "$1/submission.json" 2>/dev/null)
    status=$(cat "$1/status.json" 2>/dev/null)
    first=1
    [[ $submission =~ \"first_attempt\":\ ([0-9]+) ]] && first=${BASH_REMATCH[1]}
    if [[ $status =~ ^\{\"schema\":\ 1,\ \"state\":\ \"([a-z]+)\",\ \"attempt\":\ ([0-9]+) ]] &&
      [ "${BASH_REMATCH[2]}" -ge "$first" ]; then
      stood=${BASH_REMATCH[1]}
      [ ! -e "$1/cancelled" ] || [ "$stood" = done ] || [ "$stood" = running ] || stood=cancelled
      case $stood in
        done) return ;;
        failed) stood=failed && return ;;
        stopped | cancelled) stood="is $stood" && return ;;
      esac
    else # its last word is of an attempt before the newest submission
      status=$submission
    fi
    stood=waits
    ! lives "$status" || return 0
  done
  stood="is lost"
  [ ! -e "$1/cancelled" ] || stood="is cancelled"
}
lives() { # text that names a process: whether it lives
  local pid stat
  [[ $1 =~ \"boot\":\ \"([^\"]*)\" ]] && [ "${BASH_REMATCH[1]}" = "$boot" ] || return
  [[ $1 =~ \"pid\":\ ([0-9]+) ]] && pid=${BASH_REMATCH[1]} || return
  { read -r stat <"/proc/$pid/stat"; } 2>/dev/null || return
  stat=(${stat##*) })
  [[ $1 =~ \"start\":\ ([0-9]+) ]] && [ "${stat[19]}" = "${BASH_REMATCH[1]}" ] && [ "${stat[0]}" != Z ]
}
if [ -e "$RUN/__FILE__" ]; then
  mapfile -t others <"$RUN/__FILE__"
  for other in "${others[@]:1}"; do
    stands "$other"
    [ "$stood" != waits ] || status queued null null "waiting for ${other##*/}, which it comes after"
    while [ "$stood" = waits ]; do
      sleep 1
      ended_before
      stands "$other"
    done
    if [ "$stood" != done ] && [ "${others[0]}" != any ]; then
      status cancelled null "\"$(now)\"" "it never started: it was to come after ${other##*/}, which $stood"
      rm -f "$RUN/.reserve"
      exit 1
    fi
  done
  rm -f "$RUN/__FILE__" # a resumed run has come after them
  started=$(now)
fi
""".strip()
).replace("__FILE__", FILE)
