#!/usr/bin/env bash
# Run 20260102-030405-calm-fox: mnist in torch at o1 (autocast), bfloat16, batch 128.
# Asked for: amp=o1 batch=128; plan.json has every setting.
# Written by the launcher. supervise.sh beside it has the functions that it calls.

set -u
umask 077
LAUNCHER_RUN='/data/my '"'"'runs'"'"' $x/20260102-030405-calm-fox'
LAUNCHER_CODE='/data/my '"'"'runs'"'"' $x/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'

trainer() {
  cd "$LAUNCHER_CODE" || exit 1
  /opt/venv/bin/python -m recipes.torch_.mnist \
    'run=/data/my '"'"'runs'"'"' $x/20260102-030405-calm-fox'
}

LAUNCHER_WHO=trainer LAUNCHER_RESULT=required
LAUNCHER_ENGINE='' LAUNCHER_SECRETS=''
LAUNCHER_QUEUE=direct LAUNCHER_SHARED=''
LAUNCHER_TELEMETRY_EVERY=10 LAUNCHER_TELEMETRY_GPUS=''
[ -e "$LAUNCHER_RUN/supervise.sh" ] || { echo "the run folder $LAUNCHER_RUN is gone" >&2; exit 1; }
# shellcheck source=/dev/null
. "$LAUNCHER_RUN/supervise.sh" || exit 1

begin_attempt
end_if_unwanted
report_running

export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=''
export A='$(id) `id` '"'"'x'"'"' "y" \ ${HOME} ; & | > * ~ !'
export B='é ü 漢字 🦊'
export C=''
export D=-rf
export E=a,b=c:d
KEY=$(<'/home/mei/.key with space') && export KEY || exit 1
export PYTHONPATH="$LAUNCHER_CODE" PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT LAUNCHER_SPEC

trap 'setup_failed "$?" "$BASH_COMMAND"' ERR # cluster.setup, as given
set +u
module load cuda/12.4
ulimit -c 0
set -u
trap - ERR

supervise trainer
end_attempt
