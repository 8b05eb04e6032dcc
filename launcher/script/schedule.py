"""What a comparison's run.sh does: its arms in turn, each block an attempt of the arm's own run.sh; then its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from containers.runtime import Runtime
from containers.words import Late, Word, to_bash
from launcher.plan import container
from launcher.plan.model import Plan
from launcher.script import attempt_text
from launcher.template import fill

COMMAND = "blocks"

LAUNCHER = "launcher.zip"
"""Of a comparison's folder: the launcher's own modules, since what the arms run in holds none of them."""

# A trainer says it in words of its framework: torch and Paddle, TensorFlow, Python, the system, its libraries. The
# system's killer says nothing, and leaves 137, as anybody's kill -9 does.
_OUT_OF_MEMORY = "out.?of.?memory|resource ?exhausted|memoryerror|can.{1,2}t allocate memory|bad_alloc|alloc_failed"

_FUNCTION = r"""
blocks() {
  local code outcome
  measure
  code=$?
  case $code in 0) outcome=done ;; 85) outcome=stopped ;; *) outcome=failed ;; esac
  [ -n "$ended" ] || conclude
  return "$code"
}
conclude() ( # RUN/result.json, in what the control runs in
  __CONCLUDE__
)
measure() { # the arms in turn; what was measured stands in RUN/blocks, so that a comparison can go on
  __RECORDS__
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


def order(arms: Sequence[str], rounds: int) -> list[str]:
    """The blocks: each round has one of every arm, every other round backwards."""
    return [arm for number in range(rounds) for arm in (arms if number % 2 == 0 else reversed(arms))]


def function(plan: Plan) -> str:
    """The function of bash that `COMMAND` calls."""
    assert plan.comparison is not None
    names = [arm.arm for arm in plan.arms]
    return fill(
        _FUNCTION,
        order=" ".join(order(names, plan.comparison.rounds)),
        arms=" ".join(names),
        out_of_memory=_OUT_OF_MEMORY,
        cool_down=str(plan.comparison.cool_down),
        conclude="\n  ".join(_conclusion(plan)),
        records=attempt_text.GROUP_READS if plan.shared is not None else "",
    )


def _conclusion(plan: Plan) -> list[str]:
    """Lines of bash that write down what the arms amount to, once, on the first node."""
    module = ("-m", "launcher.compare.conclusion")
    argv: tuple[Word, ...] = (plan.python, *module, Late("RUN"), Late("outcome"), Late("attempt"))
    if plan.container is None:
        # From where no other launcher lies, which would come first.
        return ['cd "$RUN" || exit 1', f'PYTHONPATH="$RUN/{LAUNCHER}" {" ".join(map(to_bash, argv))}']
    from containers.runtimes import wrap  # which jobs without a container do without

    described = container.describe(dataclasses.replace(plan, nodes=1, secrets={}), argv)
    described = dataclasses.replace(
        described,
        environment={**described.environment, "PYTHONPATH": f"{plan.run_dir}/{LAUNCHER}"},
        workdir=plan.run_dir,
        devices=None if described.devices is None else (),  # it computes nothing
    )
    wrapped = wrap(described, _on_one_node(plan.container.runtime))
    exports = [f"export {name}={to_bash(value)}" for name, value in wrapped.environment.items()]
    return [*exports, " \\\n    ".join(map(to_bash, wrapped.argv))]


def _on_one_node(runtime: Runtime) -> Runtime:
    """Pyxis starts its containers by srun, on all nodes."""
    words = ("--nodes=1" if each.startswith("--nodes=") else each for each in runtime.command)
    return dataclasses.replace(runtime, command=tuple(words))
