# shellcheck shell=bash
# GPUs of a host that people share: who is on each, and how to take some. gpu_locks.py explains the locks.

gpu_folder() { # where the locks are: the same place for every user of this host, on its own disk
  local folder
  for folder in /run/lock /var/tmp /tmp; do # the first is never tidied by age, and not everywhere open to everybody
    if [ -k "$folder" ] && [ -w "$folder" ] && df -l "$folder" >/dev/null 2>&1; then
      echo "$folder/launcher-gpu"
      return
    fi
  done
  return 1
}

gpu_lock() { # file, seconds to wait: a lock on it, held by the descriptor $lock
  local how=(-n)
  [ $# -lt 2 ] || how=(--wait "$2")
  while :; do
    [ -e "$1" ] || (umask 0 && set -o noclobber && : >"$1") 2>/dev/null
    [ -f "$1" ] && [ ! -L "$1" ] && { exec {lock}<"$1"; } 2>/dev/null || return 2
    if ! flock "${how[@]}" "$lock"; then
      exec {lock}<&-
      return 1
    fi
    [ "$1" -ef "/dev/fd/$lock" ] && return
    exec {lock}<&- # someone tidied the folder up meanwhile
  done
}

gpu_note() { # file: whose lock it is, as they wrote it
  local user='' run='' since='' _
  read -r user run since _ <"$1" 2>/dev/null
  user=${user//[^[:alnum:]._@-]/?} run=${run//[^[:alnum:]._-]/?} since=${since//[^0-9TZ:-]/?}
  echo "held by ${user:-another launcher}${run:+ (run $run)}${since:+ since $since}"
}

gpu_process() { # pid, name: whose it is and since when
  local user seconds name
  user=$(stat -c %U "/proc/$1" 2>/dev/null)
  seconds=$(ps -o etimes= -p "$1" 2>/dev/null)
  user=${user//[^[:alnum:]._@-]/?} name=${2##*/}
  name=${name//[^[:alnum:]._+-]/?}
  printf 'process %s%s%s' "$1" "${name:+ ($name)}" "${user:+ of $user}"
  [ -z "$seconds" ] || TZ=UTC0 printf ' since %(%Y-%m-%dT%H:%M:%SZ)T' $(($(TZ=UTC0 printf '%(%s)T' -1) - seconds))
  echo
}

# A driver without persistence mode starts each GPU up for a question; one that hangs never answers.
ask_driver() { timeout 20 nvidia-smi "$@"; }

gpu_look() { # a line for each GPU of this host: its index, its UUID, and who is on it; nothing is a free one
  local folder gpus apps index uuid used display on pid name who lock
  folder=$(gpu_folder) || return
  gpus=$(ask_driver --query-gpu=index,uuid,memory.used,display_active --format=csv,noheader,nounits) ||
    gpus=$(ask_driver --query-gpu=index,uuid,memory.used --format=csv,noheader,nounits) || return # an odd driver
  apps=$(ask_driver --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader) || return
  while IFS=', ' read -r index uuid used display; do
    who=
    if [ -e "$folder-$uuid" ]; then
      if gpu_lock "$folder-$uuid"; then exec {lock}<&-; else who=$(gpu_note "$folder-$uuid"); fi
    fi
    while IFS=', ' read -r on pid name; do
      if [ -z "$who" ] && [ "$on" = "$uuid" ]; then who=$(gpu_process "$pid" "$name"); fi
    done < <(printf '%s\n' "$apps")
    # Memory without a process, as seen from inside a container. A CUDA context alone takes about 500 MiB.
    if [ -z "$who" ] && [[ $used =~ ^[0-9]+$ ]] && [ "$used" -ge 500 ] && [ "$display" != Enabled ]; then
      who="$used MiB in use by processes that are not seen from here"
    fi
    echo "$index $uuid $who"
  done < <(printf '%s\n' "$gpus")
}

gpu_look_in_turn() { # behind whoever takes some just now: a look tries the locks, which a taker must find as they are
  local folder lock
  folder=$(gpu_folder) && [ -e "$folder-desk" ] && gpu_lock "$folder-desk" 30
  gpu_look
}

gpu_take() { # how many, of which UUIDs, for whom: the indices in $LAUNCHER_GPUS, or in $LAUNCHER_REFUSAL who has them
  local count=$1 pool=" $2 " folder desk found index uuid who others='' lock
  local -a chosen=()
  LAUNCHER_GPUS=''
  LAUNCHER_REFUSAL="no folder of this host is open to everybody and on its own disk, to hold locks on GPUs"
  folder=$(gpu_folder) || return
  # Takers come one at a time, so that two who want the same GPUs never end with half of them each.
  LAUNCHER_REFUSAL="the locks on GPUs ($folder-*) can't be taken: another launcher has been choosing for a minute"
  gpu_lock "$folder-desk" 60 || return
  desk=$lock
  LAUNCHER_REFUSAL="nvidia-smi does not tell which GPUs are free"
  if found=$(gpu_look); then
    while read -r index uuid who; do
      [[ $pool == *" $uuid "* ]] || continue
      if [ -n "$who" ]; then
        others+="${others:+; }GPU $index: $who"
      elif [ "${#chosen[@]}" -lt "$count" ] && gpu_lock "$folder-$uuid"; then
        chosen+=("$lock") LAUNCHER_GPUS+=${LAUNCHER_GPUS:+,}$index
        TZ=UTC0 printf '%s %s %(%Y-%m-%dT%H:%M:%SZ)T\n' "$(id -un)" "$3" -1 |
          dd of="/dev/fd/$lock" conv=nocreat status=none # without O_CREAT, and by no name that a link could take
      fi
    done < <(printf '%s\n' "$found")
    LAUNCHER_REFUSAL="GPUs asked for: $count, free: ${#chosen[@]}; ${others:-the others are not there any more}"
  fi
  exec {desk}<&-
  if [ "${#chosen[@]}" = "$count" ]; then
    LAUNCHER_GPU_LOCKS=("${chosen[@]}")
    return
  fi
  for lock in ${chosen[@]+"${chosen[@]}"}; do exec {lock}<&-; done
  return 1
}

gpu_release() { # at once, whatever a descendant that lives on may have inherited
  local lock
  for lock in "${LAUNCHER_GPU_LOCKS[@]}"; do flock --unlock "$lock"; done
}
