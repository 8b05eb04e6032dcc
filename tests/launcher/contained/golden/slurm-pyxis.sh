#!/usr/bin/env bash
#SBATCH --job-name=mnist-o1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
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
  [ -d /home/mei/launcher-runs/.cache ] || mkdir -p -m 700 /home/mei/launcher-runs/.cache || exit 1
  [ -d /home/mei/launcher-runs/.cache/home ] || mkdir -p -m 700 /home/mei/launcher-runs/.cache/home || exit 1
  export NVIDIA_VISIBLE_DEVICES=all
  export LANG=C.UTF-8
  export PYTHONNOUSERSITE=1
  export XDG_CACHE_HOME=/home/mei/launcher-runs/.cache
  export TORCHINDUCTOR_CACHE_DIR=/home/mei/launcher-runs/.cache/torchinductor
  export TRITON_CACHE_DIR=/home/mei/launcher-runs/.cache/triton
  export CUDA_CACHE_PATH=/home/mei/launcher-runs/.cache/cuda
  export USER=mei
  export LOGNAME=mei
  export CUDA_DEVICE_ORDER=PCI_BUS_ID
  export LAUNCHER_RUN_ID=20260102-030405-calm-fox
  export PYTHONPATH=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  export PYTHONUNBUFFERED=1
  srun \
    --ntasks-per-node=1 \
    --nodes=2 \
    --kill-on-bad-exit=0 \
    --export=ALL \
    --no-container-entrypoint \
    --no-container-mount-home \
    --no-container-remap-root \
    '--container-image=nvcr.io#nvidia/pytorch:25.06-py3' \
    --container-workdir=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
    --container-mounts=/home/mei/launcher-runs/20260102-030405-calm-fox:/home/mei/launcher-runs/20260102-030405-calm-fox,/home/mei/launcher-runs/.cache:/home/mei/launcher-runs/.cache,/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855:/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855:ro \
    --container-env=NVIDIA_VISIBLE_DEVICES,LANG,PYTHONNOUSERSITE,XDG_CACHE_HOME,TORCHINDUCTOR_CACHE_DIR,TRITON_CACHE_DIR,CUDA_CACHE_PATH,USER,LOGNAME,CUDA_DEVICE_ORDER,LAUNCHER_RUN_ID,PYTHONPATH,PYTHONUNBUFFERED,CUDA_VISIBLE_DEVICES,LAUNCHER_ATTEMPT,LAUNCHER_SPEC,LAUNCHER_WORKERS \
    /usr/bin/env \
    HOME=/home/mei/launcher-runs/.cache/home \
    /bin/sh \
    -c \
    'python=$1 module=$3; shift 3; exec "$python" -m "$module" "--workers=$LAUNCHER_WORKERS" "--number=$SLURM_NODEID" "$@"' \
    sh \
    python3 \
    -m \
    recipes.torch_.node \
    -m \
    torch.distributed.run \
    --nproc-per-node=4 \
    -m \
    recipes.torch_.mnist \
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
export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT LAUNCHER_SPEC

set_rendezvous
stop_before_time_limit yes
supervise trainer
end_attempt
