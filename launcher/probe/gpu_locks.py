"""GPUs of a host that people share: who is on one, and how a run gets some that nobody else's run can get.

A GPU is taken by a lock (`flock`) on a file named after its UUID. The run's own shell takes it and its processes
inherit it, so the kernel lets go of it when the last of them has ended, however that came. The files lie on the host's
own disk in the first of `FOLDERS` that everybody may write to, and hold a line that says whose run it is. Other users'
files in such a folder can't be opened with O_CREAT (fs.protected_regular), so they are made once, then opened without.

A GPU on which a process runs that no such lock belongs to is not free either: people who know nothing of this launcher
are on it. Nor is one of which much memory is in use and no process is seen, as from inside a container; unless a
display hangs on it, which needs some.

The same text of bash looks when a job is planned and takes when it starts. Needs flock and setsid (util-linux).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from containers.devices import VARIABLE
from containers.words import to_bash
from launcher.template import fill

FOLDERS = ("/run/lock", "/var/tmp", "/tmp")
"""The first is never tidied by age, and not everywhere open to everybody."""
NAME = "launcher-gpu"
"""What the names of lock files begin with; that of a GPU ends with its UUID."""
REFUSED = 75
"""Exit code of a script that found its GPUs taken, and of a sweep whose first cell did."""
IN_USE_MIB = 500
"""Memory of a GPU from which it counts as in use where no process is seen. A CUDA context alone takes about as much."""

ANSWER_SECONDS = 20
"""In which a driver tells of its GPUs. Without persistence mode it starts each of them up for that."""

HINT = "wait_gpus=true waits for them"

LOOK = rf"""
gpu_folder() {{ # where the locks are: the same place for every user of this host, on its own disk
  local folder
  for folder in {" ".join(FOLDERS)}; do
    if [ -k "$folder" ] && [ -w "$folder" ] && df -l "$folder" >/dev/null 2>&1; then
      echo "$folder/{NAME}"
      return
    fi
  done
  return 1
}}
gpu_lock() {{ # file, flags of flock: a lock on it, held by the descriptor $lock
  while :; do
    [ -e "$1" ] || (umask 0 && set -o noclobber && : >"$1") 2>/dev/null
    [ -f "$1" ] && [ ! -L "$1" ] && {{ exec {{lock}}<"$1"; }} 2>/dev/null || return 2
    if ! flock ${{2--n}} "$lock"; then
      exec {{lock}}<&-
      return 1
    fi
    [ "$1" -ef "/dev/fd/$lock" ] && return
    exec {{lock}}<&- # someone tidied the folder up meanwhile
  done
}}
gpu_note() {{ # file: whose lock it is, as they wrote it
  local user= run= since= _
  read -r user run since _ <"$1" 2>/dev/null
  user=${{user//[^[:alnum:]._@-]/?}} run=${{run//[^[:alnum:]._-]/?}} since=${{since//[^0-9TZ:-]/?}}
  echo "held by ${{user:-another launcher}}${{run:+ (run $run)}}${{since:+ since $since}}"
}}
gpu_process() {{ # pid, name: whose it is and since when
  local user seconds
  user=$(stat -c %U "/proc/$1" 2>/dev/null)
  seconds=$(ps -o etimes= -p "$1" 2>/dev/null)
  user=${{user//[^[:alnum:]._@-]/?}} name=${{2##*/}}
  name=${{name//[^[:alnum:]._+-]/?}}
  printf 'process %s%s%s' "$1" "${{name:+ ($name)}}" "${{user:+ of $user}}"
  [ -z "$seconds" ] || TZ=UTC0 printf ' since %(%Y-%m-%dT%H:%M:%SZ)T' $(($(TZ=UTC0 printf '%(%s)T' -1) - seconds))
  echo
}}
ask_driver() {{ timeout {ANSWER_SECONDS} nvidia-smi "$@"; }} # one that hangs answers nobody, ever
gpu_look() {{ # a line for each GPU of this host: its index, its UUID, and who is on it; nothing is a free one
  local folder gpus apps index uuid used display on pid name who
  folder=$(gpu_folder) || return
  gpus=$(ask_driver --query-gpu=index,uuid,memory.used,display_active --format=csv,noheader,nounits) ||
    gpus=$(ask_driver --query-gpu=index,uuid,memory.used --format=csv,noheader,nounits) || return # an odd driver
  apps=$(ask_driver --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader) || return
  while IFS=', ' read -r index uuid used display; do
    who=
    if [ -e "$folder-$uuid" ]; then
      if gpu_lock "$folder-$uuid"; then exec {{lock}}<&-; else who=$(gpu_note "$folder-$uuid"); fi
    fi
    while IFS=', ' read -r on pid name; do
      if [ -z "$who" ] && [ "$on" = "$uuid" ]; then who=$(gpu_process "$pid" "$name"); fi
    done <<<"$apps"
    if [ -z "$who" ] && [[ $used =~ ^[0-9]+$ ]] && [ "$used" -ge {IN_USE_MIB} ] && [ "$display" != Enabled ]; then
      who="$used MiB in use by processes that are not seen from here"
    fi
    echo "$index $uuid $who"
  done <<<"$gpus"
}}
""".strip()

TAKE = r"""
gpu_take() { # how many, of which UUIDs, for whom: the indices in $gpus, or in $refusal who has them
  local count=$1 pool=" $2 " folder desk found index uuid who others= lock
  local -a chosen=()
  gpus= refusal="no folder of this host is open to everybody and on its own disk, to hold locks on GPUs"
  folder=$(gpu_folder) || return
  # Takers come one at a time, so that two who want the same GPUs never end with half of them each.
  refusal="the locks on GPUs ($folder-*) can't be taken: another launcher has been choosing for a minute"
  gpu_lock "$folder-desk" "--wait 60" || return
  desk=$lock refusal="nvidia-smi does not tell which GPUs are free"
  if found=$(gpu_look); then
    while read -r index uuid who; do
      [[ $pool == *" $uuid "* ]] || continue
      if [ -n "$who" ]; then
        others+="${others:+; }GPU $index: $who"
      elif [ "${#chosen[@]}" -lt "$count" ] && gpu_lock "$folder-$uuid"; then
        chosen+=("$lock") gpus+=${gpus:+,}$index
        TZ=UTC0 printf '%s %s %(%Y-%m-%dT%H:%M:%SZ)T\n' "$(id -un)" "$3" -1 |
          dd of="/dev/fd/$lock" conv=nocreat status=none # without O_CREAT, and by no name that a link could take
      fi
    done <<<"$found"
    refusal="GPUs asked for: $count, free: ${#chosen[@]}; ${others:-the others are not there any more}"
  fi
  exec {desk}<&-
  if [ "${#chosen[@]}" = "$count" ]; then
    gpu_locks=("${chosen[@]}")
    return
  fi
  for lock in ${chosen[@]+"${chosen[@]}"}; do exec {lock}<&-; done
  return 1
}
gpu_release() { # at once, whatever a descendant that lives on may have inherited
  local lock
  for lock in "${gpu_locks[@]}"; do flock --unlock "$lock"; done
}
""".strip()

_TAKING = r"""
# These GPUs, or as many of them, for this run alone. Cells of a sweep that come after its first one wait for theirs.
tell() { [ -z "${LAUNCHER_TURN-}" ] || { echo "$LAUNCHER_TURN $1" >&9 && exec 9>&-; }; } # whoever runs the sweep
pause=1
until gpu_take __COUNT__ __POOL__ __RUN__; do
  ended_before
  if [ -z "${LAUNCHER_WAIT-}__WAIT__" ]; then
    status failed null "\"$(now)\"" "$refusal"
    rm -f "$RUN/.reserve"
    tell refused
    exit __REFUSED__
  fi
  status queued null null "$refusal"
  for ((second = 0; second < pause; second++)); do
    sleep 1
    ended_before
  done
  pause=$((pause < 16 ? 2 * pause : 16))
done
echo "$gpus" >"$logs/gpus"
__LATE__
tell taken
""".strip()

RELEASE = "gpu_release"

TURNS = rf"""
exec 9<> <(:) # a pipe: a cell says when it has its GPUs, and its starter when it has ended
waits= number=0
for folder in "$@"; do
  number=$((number + 1))
  {{
    # setsid gives each cell a session of its own, so that one can be ended without the others.
    LAUNCHER_TURN=$number LAUNCHER_WAIT=$waits setsid --wait bash "$folder/run.sh"
    echo "$number ended" >&9
  }} &
  while read -r -u 9 which said && [ "$which" != "$number" ]; do :; done
  [ "$said" != refused ] || exit {REFUSED}
  waits=yes
done
wait
""".strip()
"""Runs the run folders given to it: each that takes GPUs as soon as a set of them is free, any other in its turn."""


def not_wanted(text: str) -> str:
    """The script's look at whether the run is still wanted, as a function: while it waits it looks again and again."""
    return "\n".join(["ended_before() {", *(f"  {line}" for line in text.splitlines()), "}", "ended_before"])


def take(count: int, pool: Sequence[str], run: str, *, wait: bool, chosen_late: bool) -> str:
    """The part of a script that takes GPUs and shows the job those that were `chosen_late`, or ends it."""
    return fill(
        _TAKING,
        count=str(count),
        pool=to_bash(" ".join(pool)),
        run=to_bash(run),
        wait="yes" if wait else "",
        refused=str(REFUSED),
        late=show("$gpus") if chosen_late else "",
    )


def show(indices: str) -> str:
    """What shows a job the GPUs of these indices: a word of bash."""
    return f"export {VARIABLE}={indices} CUDA_VISIBLE_DEVICES={indices}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A GPU of this machine, and who is on it in words; empty is nobody."""

    index: int
    uuid: str
    holder: str = ""


def look() -> list[Seen]:
    """The GPUs of this machine in the order of the bus; none where that can't be told."""
    # Behind whoever takes some just now: a look tries the locks, which a taker must find as they are.
    turn = 'folder=$(gpu_folder) && [ -e "$folder-desk" ] && gpu_lock "$folder-desk" "--wait 30"'
    try:
        done = subprocess.run(
            ["bash", "-c", f"{LOOK}\n{turn}\ngpu_look"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse(done.stdout.decode(errors="replace").splitlines()) if done.returncode == 0 else []


def parse(lines: Iterable[str]) -> list[Seen]:
    """What `gpu_look` prints."""
    fields = [f"{line}  ".split(" ", 2) for line in lines]
    return [
        Seen(index=int(index), uuid=uuid, holder=holder.rstrip()) for index, uuid, holder in fields if index.isdecimal()
    ]


def refusal(count: int, pool: Sequence[Seen], host: str) -> str:
    """Why so many GPUs can't be had of those; empty where they can."""
    busy = [f"GPU {each.index}: {each.holder}" for each in pool if each.holder]
    free = len(pool) - len(busy)
    if count <= free:
        return ""
    fewer = f"gpus={free} takes what is free, " if free else ""
    said = "; ".join(busy) or "the others are not there any more"
    return f"GPUs asked for on {host}: {count}, free: {free}; {said} ({fewer}{HINT})"
