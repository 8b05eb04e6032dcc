#!/usr/bin/env bash
# Comparison 20260102-030405-brave-otter of 2 arms, each with its own run.sh in RUN/arms.
# Written by the launcher. supervise.sh beside it has the functions that it calls.

set -u
umask 077
RUN=/home/mei/launcher-runs/20260102-030405-brave-otter
CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

conclude() {
  cd "$RUN" || exit 1
  PYTHONPATH="$RUN/launcher.zip" /opt/venv/bin/python -m launcher.compare.conclusion "$RUN" "$outcome" "$attempt"
}

WHO=comparison RESULT='' ENGINE='' OWN_SECRETS=''
QUEUE=direct SHARED=''
TELEMETRY_EVERY='' TELEMETRY_GPUS=''
ORDER='00 01 01 00 00 01'
ARMS='00 01' COOL_DOWN=2
[ -e "$RUN/supervise.sh" ] || { echo "the run folder $RUN is gone" >&2; exit 1; }
# shellcheck source=/dev/null
. "$RUN/supervise.sh" || exit 1

begin_attempt
end_if_unwanted
report_running

export PYTHONPATH="$CODE" PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=20260102-030405-brave-otter LAUNCHER_ATTEMPT=$attempt LAUNCHER_SPEC=$plan_file

supervise run_arms
end_attempt
