"""What a comparison's run.sh does: its arms in turn, each block an attempt of the arm's own run.sh."""

from __future__ import annotations

from launcher import comparison
from launcher.plan import Plan

COMMAND = "blocks"

# A trainer says it in words of its framework: torch and Paddle, TensorFlow, Python, the system, its libraries. The
# system's killer says nothing, and leaves 137, as anybody's kill -9 does.
_OUT_OF_MEMORY = "out.?of.?memory|resource ?exhausted|memoryerror|can.{1,2}t allocate memory|bad_alloc|alloc_failed"

_FUNCTION = r"""
blocks() { # the arms in turn; what was measured stands in RUN/blocks, so that a comparison can go on
  local order=(__ORDER__) measured=0 broken="" arm folder code number relay said
  [ ! -e "$RUN/blocks" ] || measured=$(grep -c . "$RUN/blocks")
  for arm in "${order[@]:measured}"; do
    folder=$RUN/arms/$arm
    if [ -e "$folder/failed" ]; then
      echo "$arm skipped" >>"$RUN/blocks"
      continue
    fi
    number=$(grep -c . "$RUN/blocks" 2>/dev/null)
    echo "block $((${number:-0} + 1)) of ${#order[@]}: arm $arm"
    rm -f "$folder/STOP"
    while [ ! -e "$RUN/STOP" ] || ! : >"$folder/STOP"; do sleep 0.5; done & # a wish to stop reaches the arm
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
      said=$folder/attempts/$(ls "$folder/attempts" | sort -n | tail -n 1)/stderr.log
      if grep -qiE '__OUT_OF_MEMORY__' "$said"; then
        echo "out of memory" >"$folder/failed"
      elif [ "$code" = 137 ]; then
        echo "killed" >"$folder/failed"
      else
        echo "exit code $code" >"$folder/failed"
      fi
      echo "arm $arm: $(cat "$folder/failed")" >&2
      tail -n 5 "$said" >&2
    fi
    echo "$arm $code" >>"$RUN/blocks"
    [ "${number:-0}" = $((${#order[@]} - 1)) ] || sleep __COOL_DOWN__
  done
  # An arm that ran out of memory is a finding; where none is left, or one failed otherwise, the comparison failed.
  for arm in __ARMS__; do
    [ ! -e "$RUN/arms/$arm/failed" ] || broken+="$arm "
    ! grep -qs "exit code" "$RUN/arms/$arm/failed" || return 1
  done
  [ "$broken" != "__ARMS__ " ]
}
""".strip()


def function(plan: Plan) -> str:
    """The function of bash that `COMMAND` calls."""
    assert plan.comparison is not None
    names = [arm.arm for arm in plan.arms]
    return (
        _FUNCTION.replace("__ORDER__", " ".join(comparison.order(names, plan.comparison.rounds)))
        .replace("__ARMS__", " ".join(names))
        .replace("__OUT_OF_MEMORY__", _OUT_OF_MEMORY)
        .replace("__COOL_DOWN__", str(plan.comparison.cool_down))
    )
