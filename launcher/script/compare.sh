# shellcheck shell=bash
# A comparison: its arms in turn, each block an attempt of the arm's own run.sh; then its result.
#
# run.sh sets LAUNCHER_ORDER, the arm of every block in order, LAUNCHER_ARMS, each arm once, and LAUNCHER_COOL_DOWN,
# seconds between blocks; and defines conclude, which writes result.json. The file `blocks` has a line for each block:
# arm and exit code. arms/ARM/block holds the number of the arm's newest block, from 0, and the number of its blocks.

run_arms() {
  LAUNCHER_ENDED=
  trap 'LAUNCHER_ENDED=yes' TERM INT HUP
  measure
  local code=$?
  case $code in 0) LAUNCHER_OUTCOME="done" ;; 85) LAUNCHER_OUTCOME=stopped ;; *) LAUNCHER_OUTCOME=failed ;; esac
  [ -n "$LAUNCHER_ENDED" ] || (conclude)
  return "$code"
}

measure() { # goes on behind the blocks that were measured before
  [ -z "$LAUNCHER_SHARED" ] || umask 027
  read -ra LAUNCHER_BLOCKS < <(printf '%s\n' "$LAUNCHER_ORDER")
  for LAUNCHER_MEASURED in "${LAUNCHER_BLOCKS[@]:$(blocks_measured)}"; do
    if [ -e "$LAUNCHER_RUN/arms/$LAUNCHER_MEASURED/failed" ]; then
      echo "$LAUNCHER_MEASURED skipped" >>"$LAUNCHER_RUN/blocks"
      continue
    fi
    echo "block $(($(blocks_measured) + 1)) of ${#LAUNCHER_BLOCKS[@]}: arm $LAUNCHER_MEASURED"
    number_block "$LAUNCHER_MEASURED"
    rm -f "$LAUNCHER_RUN/arms/$LAUNCHER_MEASURED/STOP"
    relay_stop_to_arm "$LAUNCHER_RUN/arms/$LAUNCHER_MEASURED" &
    LAUNCHER_RELAY=$!
    LAUNCHER_BEGAN=$SECONDS
    bash "$LAUNCHER_RUN/arms/$LAUNCHER_MEASURED/run.sh"
    after_block "$LAUNCHER_MEASURED" $? || return
    echo "it took $((SECONDS - LAUNCHER_BEGAN)) s"
    [ "$(blocks_measured)" = ${#LAUNCHER_BLOCKS[@]} ] || sleep "$LAUNCHER_COOL_DOWN"
  done
  any_arm_left
}

blocks_measured() { # how many
  local lines=0
  [ ! -e "$LAUNCHER_RUN/blocks" ] || lines=$(grep -c . "$LAUNCHER_RUN/blocks")
  echo "$lines"
}

number_block() { # arm
  local folder=$LAUNCHER_RUN/arms/$1 before=0 arms
  read -ra arms < <(printf '%s\n' "$LAUNCHER_ARMS")
  [ ! -e "$LAUNCHER_RUN/blocks" ] || before=$(grep -c "^$1 " "$LAUNCHER_RUN/blocks")
  echo "$before $((${#LAUNCHER_BLOCKS[@]} / ${#arms[@]}))" >"$folder/.block" && mv "$folder/.block" "$folder/block"
}

relay_stop_to_arm() { # folder of an arm: asks it to stop when the comparison is asked to
  while [ ! -e "$LAUNCHER_RUN/STOP" ] || ! : >"$1/STOP"; do sleep 0.5; done
}

after_block() { # arm, exit code of its script: records both; fails with the comparison's exit code if it has to end
  local folder=$LAUNCHER_RUN/arms/$1
  kill "$LAUNCHER_RELAY" 2>/dev/null
  [ -z "$LAUNCHER_ENDED" ] || return 143
  if [ -e "$LAUNCHER_RUN/STOP" ]; then
    printf '{"schema": 1, "blocks": %s}\n' "$(blocks_measured)" >"$LAUNCHER_LOGS/.stopped" &&
      mv "$LAUNCHER_LOGS/.stopped" "$LAUNCHER_LOGS/stopped.json"
    rm -f "$LAUNCHER_RUN/STOP"
    return 85
  fi
  [ "$2" = 0 ] || [ "$2" = 85 ] || arm_failed "$folder" "$2"
  echo "$1 $2" >>"$LAUNCHER_RUN/blocks"
}

arm_failed() { # folder of the arm, exit code: why, in its file `failed`
  local stderr memory
  # A trainer reports it in words of its framework: torch and Paddle, TensorFlow, Python, the system, its libraries. The
  # system's killer prints nothing, and leaves 137, as anybody's kill -9 does.
  memory="out.?of.?memory|resource ?exhausted|memoryerror|can.{1,2}t allocate memory|bad_alloc|alloc_failed"
  stderr=$1/attempts/$(find "$1/attempts" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort -n | tail -n 1)/stderr.log
  if grep -qiE "$memory" "$stderr"; then
    echo "out of memory" >"$1/failed"
  elif [ "$2" = 137 ]; then
    echo "killed" >"$1/failed"
  else
    echo "exit code $2" >"$1/failed"
  fi
  echo "arm ${1##*/}: $(cat "$1/failed")" >&2
  tail -n 5 "$stderr" >&2
}

# An arm that ran out of memory is a finding; where none is left, or one failed otherwise, the comparison failed.
any_arm_left() {
  local arm broken=""
  for arm in $LAUNCHER_ARMS; do
    [ ! -e "$LAUNCHER_RUN/arms/$arm/failed" ] || broken+="$arm "
    ! grep -qs "exit code" "$LAUNCHER_RUN/arms/$arm/failed" || return 1
  done
  [ "$broken" != "$LAUNCHER_ARMS " ]
}
