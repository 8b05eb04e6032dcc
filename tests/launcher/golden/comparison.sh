#!/usr/bin/env bash
# Comparison 20260102-030405-brave-otter of 2 arms, each with its own run.sh in RUN/arms.
# Written by the launcher. Everything it reads and writes is under RUN and CODE.

set -u
umask 077
RUN=/home/mei/launcher-runs/20260102-030405-brave-otter
CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

blocks() {
  local code outcome
  measure
  code=$?
  case $code in 0) outcome=done ;; 85) outcome=stopped ;; *) outcome=failed ;; esac
  [ -n "$ended" ] || conclude
  return "$code"
}
conclude() ( # RUN/result.json, in what the control runs in
  cd "$RUN" || exit 1
  PYTHONPATH="$RUN/launcher.zip" /opt/venv/bin/python -m launcher.compare.conclusion "$RUN" "$outcome" "$attempt"
)
measure() { # the arms in turn; what was measured stands in RUN/blocks, so that a comparison can go on
  local order=(00 01 01 00 00 01) measured=0 broken="" arm folder code number relay said
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
      if grep -qiE 'out.?of.?memory|resource ?exhausted|memoryerror|can.{1,2}t allocate memory|bad_alloc|alloc_failed' "$said"; then
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
    [ "${number:-0}" = $((${#order[@]} - 1)) ] || sleep 2
  done
  # An arm that ran out of memory is a finding; where none is left, or one failed otherwise, the comparison failed.
  for arm in 00 01; do
    [ ! -e "$RUN/arms/$arm/failed" ] || broken+="$arm "
    ! grep -qs "exit code" "$RUN/arms/$arm/failed" || return 1
  done
  [ "$broken" != "00 01 " ]
}

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

if [ -e "$RUN/cancelled" ]; then
  status cancelled null "\"$(now)\"" "cancelled before it started"
  exit 1
elif [ -e "$RUN/STOP" ]; then
  status stopped null "\"$(now)\"" "before it started"
  exit 85
fi
status running null null "" & # while the job starts
saying=$!

export PYTHONPATH="$CODE" PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=20260102-030405-brave-otter LAUNCHER_ATTEMPT=$attempt LAUNCHER_SPEC="$RUN/plan.json"

signalled=
# To everything of this run but this shell, which stays to write down how it ended.
trap 'signalled=TERM; trap "" TERM INT HUP; kill -TERM 0' TERM INT HUP
(
  trap : TERM INT HUP
  ended=
  trap 'ended=yes' TERM INT HUP
  blocks
  code=$?
  echo "$code" >"$logs/exit_code"
  exit "$code"
) &
child=$!
wait "$saying"
waited=137
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  waited=$?
done
# A wait that a trap interrupts can return anything: the file that the child left counts, where it could be written.
code=$(cat "$logs/exit_code" 2>/dev/null)
code=${code:-$waited}

ended="\"$(now)\""
if taken_over; then
  exit 1
elif [ "$code" = 0 ]; then
  status done 0 "$ended" ""
elif [ -e "$RUN/cancelled" ]; then
  status cancelled "$code" "$ended" "cancelled"
elif [ -e "$logs/stopped.json" ]; then
  status stopped "$code" "$ended" "" # the marker says at which step
elif [ -n "$signalled" ]; then
  status failed "$code" "$ended" "ended by a signal from outside"
elif [ "$code" -gt 128 ]; then
  status failed "$code" "$ended" "the trainer was killed by signal $((code - 128))"
elif [ "$code" = 2 ]; then
  status failed "$code" "$ended" "the trainer refused its settings"
else
  status failed "$code" "$ended" "not every arm could be measured"
fi
rm -f "$RUN/.reserve"
exit "$code"
