#!/usr/bin/env bash
#SBATCH --job-name=mnist-o2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --partition=gpu
#SBATCH --account=GOV109199
#SBATCH --qos=no
#SBATCH --constraint=a100&nvlink
#SBATCH --time=24:00:00
#SBATCH --reservation=maint
#SBATCH --cpus-per-task=8
#SBATCH --mem=90G
#SBATCH --wckey=paper
#SBATCH --exclude=n[3-5]
#SBATCH --nodelist=n[1-2]
#SBATCH --nice=100
#SBATCH --comment="two words \"quoted\""
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/mei/launcher-runs/20260102-030405-calm-fox/launch.log
#SBATCH --export=NIL
# Run 20260102-030405-calm-fox: mnist in torch at o2 (half_model_fp32_masters), float16 or bfloat16 by its GPU, a loss scale if float16, TF32 if the GPU has it, batch 512.
# Asked for: amp=o2 batch=512; plan.json has every setting.
# Written by the launcher. supervise.sh beside it has the functions that it calls.

set -u
umask 077
LAUNCHER_RUN=/home/mei/launcher-runs/20260102-030405-calm-fox
LAUNCHER_CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

trainer() {
  cd "$LAUNCHER_CODE" || exit 1
  exec /opt/venv/bin/python -m amp_launcher.torch.node --workers="$LAUNCHER_WORKERS" --number="$SLURM_NODEID" -m torch.distributed.run --nproc-per-node=2 \
    -m amp_launcher.recipes.mnist.train_torch \
    run=/home/mei/launcher-runs/20260102-030405-calm-fox
}

start_nodes() {
  srun --ntasks-per-node=1 --nodes=2 --kill-on-bad-exit=0 --cpus-per-task=8 bash "$LAUNCHER_RUN/run.sh" node
}

LAUNCHER_WHO=trainer LAUNCHER_RESULT=required
LAUNCHER_ENGINE='' LAUNCHER_SECRETS=''
LAUNCHER_QUEUE=slurm LAUNCHER_MAX_REQUEUES=3 LAUNCHER_SHARED=''
LAUNCHER_RESTARTS='' LAUNCHER_HANGS='' LAUNCHER_PER_NODE=2
LAUNCHER_TELEMETRY_EVERY=10 LAUNCHER_TELEMETRY_GPUS=job
[ -e "$LAUNCHER_RUN/supervise.sh" ] || { echo "the run folder $LAUNCHER_RUN is gone" >&2; exit 1; }
# shellcheck source=/dev/null
. "$LAUNCHER_RUN/supervise.sh" || exit 1

export HOME=/home/mei
export USER=mei
export LOGNAME=mei
export LANG=C.UTF-8
export PATH=/opt/slurm/bin:/usr/bin:/bin
export SLURM_CONF=/etc/slurm/slurm.conf

if [ "${1-}" = node ]; then
  start_telemetry
  trainer
fi

begin_attempt
clear_stale_stop
explain_last_attempt
end_if_unwanted
end_if_in_vain
report_running

export CUDA_DEVICE_ORDER=PCI_BUS_ID
export PYTHONPATH="$LAUNCHER_CODE${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT LAUNCHER_SPEC

trap 'setup_failed "$?" "$BASH_COMMAND"' ERR # cluster.setup, as given
trap 'setup_ended "$?" "$BASH_COMMAND"' EXIT
set +u
module purge
module load cuda/12.4
set -u
trap - ERR
[[ $(trap -p EXIT) != *setup_ended* ]] || trap - EXIT

set_rendezvous
stop_before_end yes
supervise start_nodes
end_attempt
