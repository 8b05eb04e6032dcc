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

gpu_buses() { # the addresses on the bus of this host's GPUs, one that was lost among them, in the driver's order
  local path
  for path in /proc/driver/nvidia/gpus/*; do [ ! -d "$path" ] || echo "${path##*/}"; done
}

gpu_reports() { # what the driver reports of the GPUs of this host, as XML; of each by itself where it fails for all
  local report bus answered=
  report=$(ask_driver -q -x)
  case $? in
    0) printf '%s\n' "$report" && return ;;
    124) return 1 ;; # no answer in time
  esac
  for bus in $(gpu_buses); do # one that fell off the bus makes a question about all fail
    if report=$(ask_driver -q -x --id="$bus" 2>&1) && [[ $report == *'<gpu '* ]]; then
      answered=yes
    else
      report=${report%%$'\n'*}
      report="<gpu id=\"$bus\">"$'\n'"<uuid>$bus</uuid>"$'\n'"<lost>${report//[^[:alnum:] .,:]/}</lost>"$'\n'"</gpu>"
    fi
    printf '%s\n' "$report"
  done
  [ -n "$answered" ]
}

gpu_read() { # reports: a line for each GPU, as gpu_look prints it
  local line tag value section='' index=-1 uuid who unusable fault used display shared errors pid type name
  local leaf='^<([a-z_]+)>(.*)</[a-z_]+>$'
  while read -r line; do
    if [[ $line =~ $leaf ]]; then
      tag=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]}
      case $section/$tag in
        /uuid) uuid=${value//[^[:alnum:].:-]/} ;; # a part of a file's name
        /lost) unusable="does not answer${value:+ ($value)}" ;;
        /display_active) display=$value ;;
        # Memory of the GPU is the system's too, or all of it is the virtual machine's: none of it shows a process.
        /addressing_mode) [ "$value" != ATS ] || shared=yes ;;
        /virtualization_mode) [ "$value" != VGPU ] || shared=yes ;;
        /compute_mode) [ "$value" != Prohibited ] || unusable="its compute mode is Prohibited" ;;
        /reset_required) [ "$value" != Yes ] || unusable="needs a reset" ;;
        /gpu_recovery_action)
          case $value in
            Reset | Reboot | "GPU Reset" | "Node Reboot") unusable="needs a ${value,,}" ;;
            Drain*) fault+=", the driver asks for: ${value,,}" ;;
          esac
          ;;
        /remapped_row_pending | /pending_retirement | /pending_blacklist)
          [ "$value" != Yes ] || [[ $fault == *"a memory repair"* ]] || fault+=", a memory repair waits for a reset"
          ;;
        /remapped_row_failure) [ "$value" != Yes ] || fault+=", a memory repair failed" ;;
        volatile/*uncorrectable* | double_bit/total) [[ ! $value =~ ^[0-9]{1,9}$ ]] || errors=$((errors + 10#$value)) ;;
        fb_memory_usage/used)
          used=${value% MiB}
          [[ $value != *"requires reset"* ]] || unusable="needs a reset"
          ;;
        process_info/pid) pid=$value ;;
        process_info/type) type=$value ;;
        process_info/process_name) name=$value ;;
      esac
      continue
    fi
    case $section$line in
      '<gpu id='*)
        index=$((index + 1)) uuid='' who='' unusable='' fault='' used='' display='' shared='' errors=0
        [ ! -e /dev/dxg ] || shared=yes # WSL shows no processes, and Windows uses the same memory
        ;;
      '<volatile>' | '<fb_memory_usage>') section=${line//[<>]/} ;;
      '<process_info>') section=process_info pid='' type='' name='' ;;
      'volatile<double_bit>') section=double_bit ;;
      'double_bit</double_bit>') section=volatile ;;
      'process_info</process_info>')
        section=''
        # A server of MPS waits on every GPU; its clients are processes of their own.
        if [ -z "$who" ] && [ "$type" != G ] && [ "${name##*/}" != nvidia-cuda-mps-server ]; then
          who=$(gpu_process "$pid" "$name")
        fi
        ;;
      "$section</$section>") section='' ;;
      '</gpu>')
        [ "$errors" = 0 ] || fault+=", $errors uncorrectable memory errors since its last reset"
        # Memory without a process, as seen from inside a container. A CUDA context alone takes about 500 MiB.
        if [ -z "$who$shared" ] && [[ $used =~ ^[0-9]+$ ]] && [ "$used" -ge 500 ] && [ "$display" != Enabled ]; then
          who="$used MiB in use by processes that are not seen from here"
        fi
        echo "$index|$uuid|${unusable:-$who}|${fault#, }"
        ;;
    esac
  done
}

gpu_look() { # index|UUID|who is on it, or why nobody can be|fault, a line for each GPU of this host; nothing is a free one
  local folder reports index uuid who fault lock
  folder=$(gpu_folder) && reports=$(gpu_reports) || return
  while IFS='|' read -r index uuid who fault; do
    if [ -e "$folder-$uuid" ]; then
      if gpu_lock "$folder-$uuid"; then exec {lock}<&-; else who=$(gpu_note "$folder-$uuid"); fi
    fi
    echo "$index|$uuid|$who|$fault"
  done < <(printf '%s\n' "$reports" | gpu_read)
}

gpu_look_in_turn() { # behind whoever takes some just now: a look tries the locks, which a taker must find as they are
  local folder lock
  folder=$(gpu_folder) && [ -e "$folder-desk" ] && gpu_lock "$folder-desk" 30
  gpu_look
}

gpu_take() { # how many, of which UUIDs, for whom: the indices in $LAUNCHER_GPUS, or in $LAUNCHER_REFUSAL who has them
  local count=$1 pool=" $2 " folder choosing found index uuid who fault others='' lock
  local -a chosen=()
  LAUNCHER_GPUS=''
  LAUNCHER_REFUSAL="no folder of this host is open to everybody and on its own disk, to hold locks on GPUs"
  folder=$(gpu_folder) || return
  # Takers come one at a time, so that two who want the same GPUs never end with half of them each.
  LAUNCHER_REFUSAL="the locks on GPUs ($folder-*) can't be taken: another launcher has been choosing for a minute"
  gpu_lock "$folder-desk" 60 || return
  choosing=$lock
  LAUNCHER_REFUSAL="nvidia-smi does not tell which GPUs are free"
  if found=$(gpu_look); then
    while IFS='|' read -r index uuid who fault; do
      [[ $pool == *" $uuid "* ]] || continue
      if [ -n "$who" ]; then
        others+="${others:+; }GPU $index: $who"
      elif [ "${#chosen[@]}" -lt "$count" ] && gpu_lock "$folder-$uuid"; then
        chosen+=("$lock") LAUNCHER_GPUS+=${LAUNCHER_GPUS:+,}$index
        TZ=UTC0 printf '%s %s %(%Y-%m-%dT%H:%M:%SZ)T\n' "$(id -un)" "$3" -1 |
          dd of="/dev/fd/$lock" conv=nocreat status=none # without O_CREAT, and by no name that a link could take
      fi
    done < <(printf '%s\n' "$found" | sort --stable --field-separator='|' --key=4,4) # those with a fault are last
    LAUNCHER_GPUS=$(printf '%s' "$LAUNCHER_GPUS" | tr , '\n' | sort -n | paste -sd,)
    LAUNCHER_REFUSAL="GPUs asked for: $count, free: ${#chosen[@]}; ${others:-the others are not there any more}"
  fi
  exec {choosing}<&-
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
