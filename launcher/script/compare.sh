# shellcheck shell=bash
# A comparison: its arms in turn, each block an attempt of the arm's own run.sh; then its result.
#
# run.sh sets ORDER, the arms of all blocks in a row, ARMS, each arm once, and COOL_DOWN, seconds between blocks; and
# defines conclude, which writes RUN/result.json. RUN/blocks has a line for each block: arm and exit code.

# A trainer reports it in words of its framework: torch and Paddle, TensorFlow, Python, the system, its libraries. The
# system's killer prints nothing, and leaves 137, as anybody's kill -9 does.
OUT_OF_MEMORY="out.?of.?memory|resource ?exhausted|memoryerror|can.{1,2}t allocate memory|bad_alloc|alloc_failed"

run_arms() {
  local code outcome ended=
  trap 'ended=yes' TERM INT HUP
  measure
  code=$?
  case $code in 0) outcome="done" ;; 85) outcome=stopped ;; *) outcome=failed ;; esac
  [ -n "$ended" ] || (conclude)
  return "$code"
}

measure() { # goes on behind the blocks that were measured before
  local blocks measured=0 broken="" arm folder code number relay stderr
  [ -z "$SHARED" ] || umask 027
  read -ra blocks <<<"$ORDER"
  [ ! -e "$RUN/blocks" ] || measured=$(grep -c . "$RUN/blocks")
  for arm in "${blocks[@]:measured}"; do
    folder=$RUN/arms/$arm
    if [ -e "$folder/failed" ]; then
      echo "$arm skipped" >>"$RUN/blocks"
      continue
    fi
    number=$(grep -c . "$RUN/blocks" 2>/dev/null)
    echo "block $((${number:-0} + 1)) of ${#blocks[@]}: arm $arm"
    rm -f "$folder/STOP"
    while [ ! -e "$RUN/STOP" ] || ! : >"$folder/STOP"; do sleep 0.5; done & # a request to stop reaches the arm
    relay=$!
    bash "$folder/run.sh"
    code=$?
    kill "$relay" 2>/dev/null
    [ -z "$ended" ] || return 143
    if [ -e "$RUN/STOP" ]; then
      printf '{"schema": 1, "blocks": %s}\n' "${number:-0}" >"$logs/.stopped" &&
        mv "$logs/.stopped" "$logs/stopped.json"
      rm -f "$RUN/STOP"
      return 85
    fi
    if [ "$code" != 0 ] && [ "$code" != 85 ]; then
      stderr=$folder/attempts/$(find "$folder/attempts" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort -n | tail -n 1)
      stderr=$stderr/stderr.log
      if grep -qiE "$OUT_OF_MEMORY" "$stderr"; then
        echo "out of memory" >"$folder/failed"
      elif [ "$code" = 137 ]; then
        echo "killed" >"$folder/failed"
      else
        echo "exit code $code" >"$folder/failed"
      fi
      echo "arm $arm: $(cat "$folder/failed")" >&2
      tail -n 5 "$stderr" >&2
    fi
    echo "$arm $code" >>"$RUN/blocks"
    [ "${number:-0}" = $((${#blocks[@]} - 1)) ] || sleep "$COOL_DOWN"
  done
  # An arm that ran out of memory is a finding; where none is left, or one failed otherwise, the comparison failed.
  for arm in $ARMS; do
    [ ! -e "$RUN/arms/$arm/failed" ] || broken+="$arm "
    ! grep -qs "exit code" "$RUN/arms/$arm/failed" || return 1
  done
  [ "$broken" != "$ARMS " ]
}
