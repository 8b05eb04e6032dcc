# shellcheck shell=bash
# Requests to a host that has bash and no Python of ours: a function for each, called with the values of the request.
#
# bash 4.2 or later reads them from standard input; the data of the request follow. An answer is lines of $mark, a word,
# and numbers or base64. Needs coreutils, findutils, grep, tar, gzip, and flock and setsid of util-linux.
# shellcheck disable=SC2015 # in `a && b || c`, c is for a failure of either

umask 077
say() { printf '\n%s %s\n' "$mark" "$*"; } # a login script may have left a line without its end
b64() { base64 -w 0; }
stop() { say fail "$(printf %s "$1" | b64)"; exit; }
mine() { [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ]; }
plain() { [ -f "$1" ] && [ ! -L "$1" ]; }
tell_of() { say "$1" "$(printf %s "$2" | b64)"; } # word, text
stamp() { LC_ALL=C stat -c '%s %.9Y' -- "$1"; }
process() { # pid: its $start and $session, where it lives
  local line fields
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return
  # shellcheck disable=SC2206 # they are numbers, and bash before 5.1 makes a file in /tmp for a here-string
  fields=(${line##*) })
  session=${fields[3]} start=${fields[19]}
  [[ ${fields[0]} != [ZX] ]]
}
read -r host </proc/sys/kernel/hostname
read -r boot </proc/sys/kernel/random/boot_id
shell_of() { # the $pid of the run's shell and its $birth, and whether it is $alive, as the files of $run name it
  local file text
  pid='' birth='' alive=''
  for file in "$run/status.json" "$run/submission.json"; do
    plain "$file" && text=$(head -c 65536 "$file") || continue
    [[ $text == *"\"$boot\""* && $text =~ \"pid\":\ ([0-9]+) ]] && pid=${BASH_REMATCH[1]} || continue
    [[ $text =~ \"start\":\ ([0-9]+) ]] && birth=${BASH_REMATCH[1]}
    break
  done
  [ -n "$pid" ] && process "$pid" && [ "$start" = "$birth" ] && alive=yes
}
members() { # the live processes of the run $id other than its shell, as $pids
  local other
  shell_of
  pids=()
  for other in /proc/[0-9]*; do
    other=${other#/proc/}
    if [ "$other" != "$pid" ] && process "$other" &&
      { [ "$alive$session" = "yes$pid" ] || grep -qzxF "LAUNCHER_RUN_ID=$id" "/proc/$other/environ"; } 2>/dev/null; then
      pids+=("$other")
    fi
  done
  [ -n "$alive${pids[*]}" ]
}
gone_in() { # tenths of a second: whether nothing of the run is left by then
  local turn
  for ((turn = 0; turn < $1; turn++)); do
    members || return 0
    sleep 0.1
  done
  ! members
}
end_run() { # seconds between TERM and KILL; the shell goes last, so that it can write how the others ended
  members || return 0
  if [ "$1" -gt 0 ]; then
    kill -TERM "${pids[@]}" 2>/dev/null
    gone_in $(($1 * 10)) && return
  fi
  members && kill -KILL "${pids[@]}" 2>/dev/null
  gone_in 20 && return
  kill -KILL "${pids[@]}" ${alive:+"$pid"} 2>/dev/null
  gone_in 20
}
ask_end() { # record in $run that its end was requested, unless it has ended
  plain "$run/status.json" && grep -qE '"state": "(done|failed|stopped|cancelled)"' "$run/status.json" && return
  TZ=UTC0 printf '{"time": "%(%Y-%m-%dT%H:%M:%SZ)T"}\n' -1 >"$run/cancelled" && : >"$run/STOP"
}
tell() { # the state of the run $id in $run
  local number file last=0
  mine "$run" || return 0
  say exists
  shell_of
  [ -z "$alive" ] || say alive "$pid" "$birth"
  for number in "$run"/attempts/[0-9]*; do
    number=${number##*/}
    [[ $number =~ ^[1-9][0-9]{0,5}$ ]] || continue
    say attempt "$number"
    [ "$number" -gt "$last" ] && last=$number
  done
  newest=$last
  for file in STOP cancelled plan.json submission.json status.json result.json provenance.json \
    "attempts/$last/stopped.json" "attempts/$last/failed.json"; do
    send "$file" 2097152
  done
}
send() { # a file of $run, so many bytes of its end at most
  if plain "$run/$1"; then say file "$1" "$(stamp "$run/$1")" "$(tail -c "$2" "$run/$1" | b64)"; fi
}

open_root() { # folder, bytes and SHA-256 of the archive that follows
  root=$1 bytes=$2 sum=$3
  mkdir -p -- "$root" || stop "run_root=$root can't be made"
  mine "$root" || stop "run_root=$root is not your own"
  [[ $(stat -c %A -- "$root") == d????-??-? ]] || stop "run_root=$root can be written by others: chmod go-w it"
  exec 9>>"$root/.handing.lock" && flock -w 300 9 || stop "another submission to $root does not end"
  stage=$root/.handing.stage code=$root/.code
}
receive() { # the folder that follows as an archive, as $stage/sent
  rm -rf -- "$stage"
  trap 'rm -rf -- "$stage"' EXIT
  mkdir "$stage" && head -c "$bytes" >"$stage/archive" || stop "$root takes no files"
  echo "$sum  $stage/archive" | sha256sum -c >/dev/null 2>&1 || stop "what was sent came damaged"
  tar -xzpf "$stage/archive" --no-same-owner -C "$stage" || stop "what was sent can't be unpacked in $root"
}

on_probe() { # run root, Python, program that lists its packages, three lists of fields of GPUs, paths
  run_root=${1/#\~\//$HOME/}
  [[ $run_root == /* ]] || run_root=$PWD/$run_root
  python=${2/#\~\//$HOME/}
  [ -n "$python" ] || python=$(command -v python3 || command -v python)
  program=$(type -P -- "$python") && python=$program
  place=$run_root problem=
  until [ -e "$place" ]; do place=$(dirname -- "$place"); done
  if [ ! -d "$place" ]; then problem="$place is not a folder"
  elif [ ! -w "$place" ] || [ ! -x "$place" ]; then problem="$place is not writable for $(id -un)"
  elif [ "$place" = "$run_root" ] && [ ! -O "$place" ]; then problem="$place is another user's"
  fi
  tell_of host "$(uname -n)"; tell_of user "$(id -un 2>/dev/null || id -u)"; tell_of uid "$(id -u)"
  tell_of home "$HOME"; tell_of cwd "$PWD"; tell_of system "$(uname -s)"; tell_of cpus "$(nproc)"
  tell_of run_root "$run_root"; tell_of run_root_problem "$problem"; tell_of python "$python"
  tell_of packages "$(cd / && timeout 60 "$python" -c "$3" 2>/dev/null </dev/null)"
  if command -v nvidia-smi >/dev/null; then
    for fields in "${@:4:3}"; do
      listed=$(timeout 60 nvidia-smi --query-gpu="$fields" --format=csv,noheader,nounits </dev/null) && break
      listed=
    done
    tell_of fields "$fields"; tell_of gpus "$listed"
  fi
  shift 6
  for path; do [ -e "${path/#\~\//$HOME/}" ] || tell_of missing "$path"; done
}

on_has_code() { # folder of a snapshot
  [ ! -d "$1" ] || say there
}

on_lay_code() { # archive, digest
  open_root "${@:1:3}"
  digest=$4
  [ ! -d "$code/$digest" ] || return 0 # an earlier try has laid it
  receive
  mkdir -p "$code" && mine "$code" && mv -T "$stage/sent" "$code/$digest" || stop "$code can't be written"
}

on_submit() { # archive, run, token, digest, variables to keep
  open_root "${@:1:3}"
  id=$4 token=$5 digest=$6 keep=$7 run=$root/$4
  if [ -e "$run" ]; then
    [ "$(head -c 100 "$run/.token")" = "$token" ] || stop "there is a run $id in $root already; run the command again"
    [ ! -e "$run/submission.json" ] || return 0 # an earlier try of this very submission
    rm -rf -- "$run"
  fi
  [ -d "$code/$digest" ] || stop "the code snapshot $digest was deleted meanwhile; run the command again"
  mine "$code" && mine "$code/$digest" || stop "$code is not your own"
  receive
  mkdir -p "$root/.unfinished" && : >"$root/.unfinished/$id" && mv -T "$stage/sent" "$run" || stop "$run can't be made"
  submitted() { # pid
    process "$1"
    {
      printf '{"schema": 1, "queue": "direct", "host": "%s", "sweep": null, "first_attempt": 1, ' "$host"
      TZ=UTC0 printf '"submitted": "%(%Y-%m-%dT%H:%M:%SZ)T", ' -1
      printf '"process": {"host": "%s", "boot": "%s", "pid": %s, "start": %s}}\n' "$host" "$boot" "$1" "$start"
    } >"$run/.submission" && mv -f "$run/.submission" "$run/submission.json"
  }
  submitted $$ || stop "$run can't be written" # as long as this shell lives, the run is being started
  (
    exec 9>&-
    trap - EXIT
    for name in $(compgen -e); do [[ $name =~ $keep ]] || unset "$name"; done
    cd / && exec setsid bash "$run/run.sh"
  ) </dev/null >>"$run/launch.log" 2>&1 &
  submitted $!
}

on_look() { # root and id of each run
  say here "$boot" "$(printf '%(%s)T' -1)" "$(printf %s "$host" | b64)"
  while [ $# -gt 0 ]; do
    run=$1/$2 id=$2
    tell
    for file in "attempts/${newest:-0}"/{stdout,stderr}.log launch.log; do send "$file" 65536; done
    say next
    newest=0
    shift 2
  done
}

on_log() { # root, id, attempt, offsets of stdout and stderr, lines
  run=$1/$2 id=$2 attempt=$3 lines=$6
  say here "$boot" "$(printf '%(%s)T' -1)" "$(printf %s "$host" | b64)"
  tell
  say next
  attempt=${attempt:-$newest}
  [ "$attempt" != 0 ] || attempt=1
  for name in stdout stderr; do
    file=$run/attempts/$attempt/$name.log offset=$4
    [ "$name" = stdout ] || offset=$5
    if plain "$file"; then
      size=$(stat -c %s -- "$file")
      [ -z "$lines" ] || offset=$((size - $(head -c "$size" "$file" | tail -n "$lines" | wc -c)))
      say log "$name" "$attempt" "$offset" "$(tail -c "+$((offset + 1))" "$file" | head -c 1048576 | b64)"
    else
      say log "$name" "$attempt" "$offset" ''
    fi
  done
}

on_request_stop() { # root and id of each run
  while [ $# -gt 0 ]; do
    if mine "$1/$2"; then : >"$1/$2/STOP"; fi
    shift 2
  done
}

on_cancel() { # seconds between TERM and KILL, root and id of each run
  grace=$1
  shift
  while [ $# -gt 0 ]; do
    run=$1/$2 id=$2
    if mine "$run"; then ask_end && end_run "$grace" || say left "$id" "${pids[*]}"; fi
    shift 2
  done
}

forget_code() { # root, plan.json of a run that is deleted: its code goes, unless another run there names it
  local code naming
  [[ $(head -c 2097152 "$2" 2>/dev/null) =~ \"code\":\ \"([0-9a-f]{64})\" ]] && code=${BASH_REMATCH[1]} || return 0
  rm -f -- "$2"
  naming=$(printf '%s\0' "$1"/*/plan.json "$1"/.trash/*/*/plan.json | xargs -0 grep -lsF "$code")
  # 123: grep has read them all, and found nothing
  [ $? != 123 ] || [ -n "$naming" ] || rm -rf -- "$1/.code/$code"
}
on_sizes() { # root and id of each run
  while [ $# -gt 0 ]; do
    say size "$(du -sk -- "$1/$2" 2>/dev/null | cut -f 1 | grep . || echo 0)"
    shift 2
  done
}

on_remove() { # whether to end them, whether to delete them at once, root and id of each run
  force=$1 now=$2
  shift 2
  TZ=UTC0 printf -v moment '%(%Y%m%d-%H%M%S)T' -1
  for ((at = 1; at < $#; at += 2)); do
    root=${*:at:1} id=${*:at+1:1}
    run=$root/$id
    members || continue
    [ -n "$force" ] || stop "rm: not ended yet: $id; \`cancel\` it first, or rm --force"
    ask_end && end_run 0 || stop "rm: $id is kept: its processes do not end"
  done
  while [ $# -gt 0 ]; do
    run=$1/$2 trash=$1/.trash
    if mine "$run"; then
      exec 9>>"$1/.handing.lock" && flock 9
      rm -rf -- "$run/.secrets" || stop "rm: $run/.secrets could not be deleted"
      if [ -n "$now" ]; then
        forget_code "$1" "$run/plan.json"
        rm -rf -- "$run" || stop "rm: $run could not be deleted"
      else
        taken=$trash/$moment
        mkdir -p -- "$taken" && mine "$trash" && mv -T -- "$run" "$taken/$2" ||
          stop "rm: $run could not be moved to $trash; rm --now deletes it at once"
      fi
      for taken in "$trash"/*/; do # what has been there for a week
        [ -n "$(find "$taken" -maxdepth 0 -mmin +10080 2>/dev/null)" ] && mine "$trash" && mine "${taken%/}" || continue
        for run in "$taken"*/; do forget_code "$1" "${run}plan.json"; done
        rm -rf -- "$taken"
      done
      exec 9>&-
    fi
    rm -f -- "$1/.unfinished/$2"
    shift 2
  done
}

on_contents() { # root, id
  mine "$1/$2" && cd -P -- "$1/$2" || stop "there is no run $2 in $1"
  LC_ALL=C find . -name '.?*' -prune -o -type f -printf '%s %T@ %P\0' | base64 -w 65536 |
    while read -r line; do say part "$line"; done
}

on_files() { # root, id; name, offset and stamp of each file
  mine "$1/$2" && cd -P -- "$1/$2" || stop "there is no run $2 in $1"
  shift 2
  while [ $# -gt 0 ]; do
    name=./$1 offset=$2
    if plain "$name" && current=$(stamp "$name"); then
      size=${current% *}
      [ "$current" = "$3" ] || offset=0
      say head "$current" "$offset"
      tail -c "+$((offset + 1))" "$name" | head -c $((size - offset)) | base64 -w 65536 |
        while read -r line; do say part "$line"; done
      say sum "$(head -c "$size" "$name" | sha256sum)"
    else
      say gone
    fi
    shift 3
  done
}
