"""The parts of `run.sh` that are one attempt's: how it begins, waits for its trainer, and says how it ended."""

from __future__ import annotations

from containers.runtime import Wrapped
from launcher.config import job_environment
from launcher.plan.model import Plan
from launcher.runs.store import SECRETS
from launcher.script import engine_text, slurm_text, telemetry
from launcher.template import fill

STATUS = r"""
taken_over() { [ -e "$RUN/attempts/$((attempt + 1))" ]; } # Slurm may start a run again that it has lost sight of
status() {                                                # state, exit code or null, end or null, reason
  ! taken_over || return 0
  local reason=$4 error
  until error=$(write_status "$1" "$2" "$3" "$reason" 2>&1); do
    echo "$error" >&2
    [ -e "$RUN/.reserve" ] || return 1
    rm -f "$RUN/.reserve" # on a full disk, room enough to say so
    reason="$reason${reason:+; }${error##*: } in the run's folder"
  done
}
write_status() { # one writer, written aside, renamed
  __RECORDS__
  {
    printf '{"schema": 1, "state": "%s", "attempt": %s, "exit_code": %s, ' "$1" "$attempt" "$2" &&
      printf '"started": "%s", "before": %s, "ended": %s, "reason": "%s", ' "$started" "$before" "$3" "$4" &&
      printf '"process": {"host": "%s", "boot": "%s", "pid": %s, "start": %s}}\n' "$host" "$boot" "$$" "$birth"
  } >"$RUN/.status.json" && mv -f "$RUN/.status.json" "$RUN/status.json"
}
now() { TZ=UTC0 printf '%(%Y-%m-%dT%H:%M:%SZ)T' -1; }
seconds_before() { # that earlier attempts ran: the last one until its end, or until its logs were last written to
  local last previous=$((attempt - 1)) sum=0 began until
  [ "$previous" -gt 0 ] && last=$(cat "$RUN/status.json" 2>/dev/null) || { echo 0; return; }
  [[ $last =~ \"before\":\ ([0-9]+) ]] && sum=${BASH_REMATCH[1]}
  if [[ $last == *"\"attempt\": $previous,"* && $last =~ \"started\":\ \"([^\"]+) ]]; then
    began=$(date -d "${BASH_REMATCH[1]}" +%s)
    if [[ $last =~ \"ended\":\ \"([^\"]+) ]]; then
      until=$(date -d "${BASH_REMATCH[1]}" +%s)
    else
      until=$(stat -c %Y "$RUN/attempts/$previous"/*.log | sort -n | tail -n 1)
    fi
    [ "$until" -lt "$began" ] || sum=$((sum + until - began))
  fi
  echo "$sum"
} 2>/dev/null
""".strip()

BEGIN = r"""
if [ ! -e "$RUN/plan.json" ]; then
  echo "the run folder $RUN is gone" >&2
  exit 1
fi
[ -d "$RUN/attempts" ] || mkdir "$RUN/attempts" || exit 1
attempt=1
# Two starts of one run never share a number: it is whose mkdir succeeds.
until error=$(mkdir "$RUN/attempts/$attempt" 2>&1); do
  if [ ! -e "$RUN/attempts/$attempt" ]; then
    echo "$error" >&2
    exit 1
  fi
  attempt=$((attempt + 1))
done
logs=$RUN/attempts/$attempt
exec >>"$logs/stdout.log" 2>>"$logs/stderr.log" </dev/null
rm -f "$RUN"/.{result.json,metrics.jsonl}.* "$RUN"/attempts/*/.*.json.* # a killed trainer wrote these aside
printf %4096s >"$RUN/.reserve"
started=$(now)
before=$(seconds_before)
read -r host </proc/sys/kernel/hostname
read -r boot </proc/sys/kernel/random/boot_id
read -r stat </proc/$$/stat
fields=(${stat##*) })
birth=${fields[19]}
""".strip()

REFUSED = r"""
if [ -e "$RUN/cancelled" ]; then
  status cancelled null "\"$(now)\"" "cancelled before it started"
  exit 1
elif [ -e "$RUN/STOP" ]; then
  status stopped null "\"$(now)\"" "before it started"
  exit 85
fi
""".strip()

STARTS = r"""
status running null null "" & # while the job starts
saying=$!
""".strip()

SETUP_BEGINS = r"""
setup_failed() { # exit code, command
  trap - ERR
  echo "error: cluster.setup: \`$2\` failed with exit code $1" >&2
  [ -z "${saying-}" ] || wait "$saying"
  status failed "$1" "\"$(now)\"" "a line of cluster.setup failed with exit code $1; stderr.log says which"
  exit "$1"
}
trap 'setup_failed "$?" "$BASH_COMMAND"' ERR
# cluster.setup, as given
""".strip()
SETUP_ENDS = "trap - ERR"

_RUN = r"""
signalled=
# To everything of this run but this shell, which stays to write down how it ended.
trap 'signalled=TERM; trap "" TERM INT HUP; kill -TERM 0__STOP_CONTAINER__' TERM INT HUP
(
  trap : TERM INT HUP
  __COMMAND__
  code=$?
  __OUTCOME__
  echo "$code" >"$logs/exit_code"
  exit "$code"
) &
child=$!
__SAMPLE__
wait "$saying"
waited=137
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  waited=$?
done
# A wait that a trap interrupts can return anything: the file that the child left counts, where it could be written.
code=$(cat "$logs/exit_code" 2>/dev/null)
code=${code:-$waited}
__REMOVE__
""".strip()

_ENDING = r"""
ended="\"$(now)\""
if taken_over; then
  exit 1
elif [ "$code" = 0 ]__AND_RESULT__; then
  status done 0 "$ended" ""
elif [ -e "$RUN/cancelled" ]; then
  status cancelled "$code" "$ended" "cancelled"
__REQUEUE__
elif [ -e "$logs/stopped.json" ]; then
  status stopped "$code" "$ended" "" # the marker says at which step
__SIGNALLED__
__WITHOUT_RESULT__
__NOT_CREATED__
elif [ "$code" -gt 128 ]; then
  status failed "$code" "$ended" "the __WHO__ was killed by signal $((code - 128))"
elif [ "$code" = 2 ]; then
  status failed "$code" "$ended" "__REFUSED__"
else
  status failed "$code" "$ended" "__FAILED__"
fi
__SECRETS__
rm -f "$RUN/.reserve"
exit "$code"
""".strip()

# Not before the run's last word: a job that Slurm starts again needs them.
_FORGET = r"""
grep -qE '"state": "(requeued|interrupted)"' "$RUN/status.json" || rm -rf "$RUN/__FOLDER__"
""".strip()

_SIGNALLED = r"""
elif [ -n "$signalled" ]; then
  status failed "$code" "$ended" "ended by a signal from outside"
""".strip()

# What this attempt's trainer wrote last: an engine that could not start it may end with 0 too.
_AND_RESULT = ' && grep -qsw "\\"attempts\\": $attempt" "$RUN/result.json"'

_WITHOUT_RESULT = r"""
elif [ "$code" = 0 ]; then
  status failed 0 "$ended" "the __WHO__ ended with exit code 0 and left no result"
  code=1
""".strip()

_NOT_CREATED = r"""
elif [ "$code" -ge 125 ] && [ "$code" -le 127 ]; then
  status failed "$code" "$ended" "__ENGINE__ could not start the container or what runs in it (exit code $code)"
""".strip()

GROUP_READS = "umask 027 # the group that shares the root reads records and logs"
"""A line of bash before a shared run's own records are made. What else runs has `umask 077`."""

_OWN = r"""
# Whoever owns the folders above could have put others in the place of these.
for each in "$RUN" "$RUN/plan.json" "$CODE"; do
  [ -O "$each" ] && continue
  echo "error: $each is not $(id -un)'s, whose run this is" >&2
  exit 1
done
""".strip()


def status(shared: bool) -> str:
    """The functions that write `status.json`."""
    return fill(STATUS, records=GROUP_READS if shared else "")


def begin(shared: bool) -> str:
    """The beginning of an attempt; in a root that a group shares, behind a look at whose the run's folders are."""
    return f"{_OWN}\n{GROUP_READS}\n{BEGIN}\numask 077" if shared else BEGIN


def around(command: str, outliving: Wrapped | None, *, slurm: bool, sampled: bool) -> str:
    """The trainer from its start to its exit code, in `code`.

    `command` is lines of bash that leave theirs in `$?`, `outliving` its container where that outlives its client, and
    `sampled` says that this shell has telemetry sampled meanwhile.
    """
    sampling = (
        f"{telemetry.START}\nsampler=${{!-}}"  # behind the start of the trainer, which neither waits nor holds it
    )
    text = fill(
        _RUN,
        command=command,
        stop_container=engine_text.STOP if outliving and slurm else "",
        outcome=engine_text.outcome(outliving) if outliving else "",
        sample=sampling if sampled else "",
        remove=engine_text.remove_left(outliving) if outliving else "",
    )
    return "\n".join([text, telemetry.LET_GO, 'wait "$sampler" 2>/dev/null']) if sampled else text


def ending(plan: Plan) -> str:
    """What a run's last state is called, by its exit code and by what lies in its folder."""
    script = plan.script is not None and not plan.arms
    who = "script" if script else "trainer"
    failed = "not every arm could be measured" if plan.arms else f"the {who} ended with exit code $code"
    # What the exit codes of somebody else's script mean, only that script knows.
    refused = "the script ended with exit code 2" if script else "the trainer refused its settings"
    signalled, requeue = _SIGNALLED, ""
    if plan.queue == "slurm" and not plan.arm:
        signalled = fill(slurm_text.INTERRUPTED, who=who)
        requeue = fill(slurm_text.REQUEUE, max_requeues=str(plan.cluster["max_requeues"]))
    kept = not plan.arm and job_environment.own_secrets(plan.secrets, plan.run_dir)
    proved = plan.settings["require_proof"] and not plan.arms
    engine = plan.container.runtime.kind if plan.container and not plan.arms else ""
    return fill(
        _ENDING,
        who=who,
        refused=refused,
        failed=failed,
        signalled=signalled,
        requeue=requeue,
        secrets=fill(_FORGET, folder=SECRETS) if kept else "",
        and_result=_AND_RESULT if proved else "",
        without_result=fill(_WITHOUT_RESULT, who=who) if proved else "",
        not_created=fill(_NOT_CREATED, engine=engine) if engine in ("docker", "podman") else "",
    )
