#!/usr/bin/env bash
#SBATCH --job-name=mnist-o1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/mei/launcher-runs/20260102-030405-calm-fox/launch.log
#SBATCH --export=NIL
# Run 20260102-030405-calm-fox: mnist in torch at o1 (autocast), float16 or bfloat16 by its GPU, a loss scale if float16, TF32 if the GPU has it, batch 512.
# Asked for: amp=o1 batch=512; plan.json has every setting.
# Written by the launcher. supervise.sh beside it has the functions that it calls.

set -u
umask 077
LAUNCHER_RUN=/home/mei/launcher-runs/20260102-030405-calm-fox
LAUNCHER_CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

trainer() {
  LAUNCHER_GPUS=${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:-}}
  if [[ ! $LAUNCHER_GPUS =~ ^[0-9A-Za-z-]+(,[0-9A-Za-z-]+)*$ ]]; then
    echo "Slurm names no GPUs of this job (SLURM_STEP_GPUS and SLURM_JOB_GPUS: '$LAUNCHER_GPUS')" >&2
    exit 1
  fi
  [ -d /home/mei/launcher-runs/.cache ] || mkdir -p -m 700 /home/mei/launcher-runs/.cache || exit 1
  [ -d /home/mei/launcher-runs/.cache/home ] || mkdir -p -m 700 /home/mei/launcher-runs/.cache/home || exit 1
  remove_stale_container
  docker \
    run \
    --rm \
    --init \
    --pull=never \
    --log-driver=none \
    --name=20260102-030405-calm-fox-"$SLURM_NODEID" \
    --network=host \
    --ipc=host \
    --ulimit=memlock=-1 \
    --ulimit=stack=67108864 \
    --user=1000:1000 \
    --group-add=1000 \
    --group-add=27 \
    '--gpus="device='"$LAUNCHER_GPUS"'"' \
    --workdir=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
    --mount=type=bind,source=/home/mei/launcher-runs/20260102-030405-calm-fox,target=/home/mei/launcher-runs/20260102-030405-calm-fox \
    --mount=type=bind,source=/home/mei/launcher-runs/.cache,target=/home/mei/launcher-runs/.cache \
    --mount=type=bind,source=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855,target=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855,readonly \
    --env=HOME=/home/mei/launcher-runs/.cache/home \
    --env=LANG=C.UTF-8 \
    --env=PYTHONNOUSERSITE=1 \
    --env=XDG_CACHE_HOME=/home/mei/launcher-runs/.cache \
    --env=TORCHINDUCTOR_CACHE_DIR=/home/mei/launcher-runs/.cache/torchinductor \
    --env=TRITON_CACHE_DIR=/home/mei/launcher-runs/.cache/triton \
    --env=CUDA_CACHE_PATH=/home/mei/launcher-runs/.cache/cuda \
    --env=USER=mei \
    --env=LOGNAME=mei \
    --env=CUDA_DEVICE_ORDER=PCI_BUS_ID \
    --env=LAUNCHER_RUN_ID=20260102-030405-calm-fox \
    --env=PYTHONPATH=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
    --env=PYTHONUNBUFFERED=1 \
    --env=LAUNCHER_ATTEMPT \
    --env=LAUNCHER_SPEC \
    --env=LAUNCHER_WORKERS \
    --entrypoint= \
    local/torch \
    python3 \
    -m \
    recipes.torch_.node \
    --workers="$LAUNCHER_WORKERS" \
    --number="$SLURM_NODEID" \
    -m \
    torch.distributed.run \
    --nproc-per-node=2 \
    -m \
    recipes.torch_.mnist \
    run=/home/mei/launcher-runs/20260102-030405-calm-fox
}

start_nodes() {
  srun --ntasks-per-node=1 --nodes=2 --kill-on-bad-exit=0 --export=ALL bash "$LAUNCHER_RUN/run.sh" node
}

remove_container() {
  docker rm --force 20260102-030405-calm-fox-"$SLURM_NODEID"
}

stop_container() { # after $LAUNCHER_GRACE seconds
  docker stop --time="$LAUNCHER_GRACE" 20260102-030405-calm-fox-"$SLURM_NODEID"
}

LAUNCHER_WHO=trainer LAUNCHER_RESULT=required
LAUNCHER_ENGINE=docker LAUNCHER_SECRETS=''
LAUNCHER_QUEUE=slurm LAUNCHER_MAX_REQUEUES=3 LAUNCHER_SHARED=''
LAUNCHER_TELEMETRY_EVERY=10 LAUNCHER_TELEMETRY_GPUS=job
[ -e "$LAUNCHER_RUN/supervise.sh" ] || { echo "the run folder $LAUNCHER_RUN is gone" >&2; exit 1; }
# shellcheck source=/dev/null
. "$LAUNCHER_RUN/supervise.sh" || exit 1

if [ "${1-}" = node ]; then
  start_telemetry
  supervise_container_on_node
fi

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
export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT LAUNCHER_SPEC

set_rendezvous
stop_before_time_limit yes
supervise start_nodes
end_attempt
