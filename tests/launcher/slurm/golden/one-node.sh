#!/usr/bin/env bash
#SBATCH --job-name=mnist-o1
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/mei/launcher-runs/20260102-030405-calm-fox/launch.log
#SBATCH --export=NIL
# Run 20260102-030405-calm-fox: mnist in torch at o1 (autocast), float16 or bfloat16 by its GPU, a loss scale if float16, TF32 if the GPU has it, batch 128.
# Asked for: amp=o1 batch=128; plan.json has every setting.
# Written by the launcher. supervise.sh beside it has the functions that it calls.

set -u
umask 077
LAUNCHER_RUN=/home/mei/launcher-runs/20260102-030405-calm-fox
LAUNCHER_CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

trainer() {
  cd "$LAUNCHER_CODE" || exit 1
  /opt/venv/bin/python -m recipes.torch_.mnist \
    run=/home/mei/launcher-runs/20260102-030405-calm-fox
}

LAUNCHER_WHO=trainer LAUNCHER_RESULT=required
LAUNCHER_ENGINE='' LAUNCHER_SECRETS=''
LAUNCHER_QUEUE=slurm LAUNCHER_MAX_REQUEUES=3 LAUNCHER_SHARED=''
LAUNCHER_TELEMETRY_EVERY=10 LAUNCHER_TELEMETRY_GPUS=job
[ -e "$LAUNCHER_RUN/supervise.sh" ] || { echo "the run folder $LAUNCHER_RUN is gone" >&2; exit 1; }
# shellcheck source=/dev/null
. "$LAUNCHER_RUN/supervise.sh" || exit 1

begin_attempt
clear_stale_stop
end_if_unwanted
report_running

export HOME=/home/mei
export USER=mei
export LOGNAME=mei
export LANG=C.UTF-8
export PATH=/opt/slurm/bin:/usr/bin:/bin
export SLURM_CONF=/etc/slurm/slurm.conf
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export PYTHONPATH="$LAUNCHER_CODE" PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT LAUNCHER_SPEC

stop_before_time_limit yes
supervise trainer
end_attempt
