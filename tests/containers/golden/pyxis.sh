export NVIDIA_VISIBLE_DEVICES=all
export LANG=C.UTF-8
export PYTHONNOUSERSITE=1
export XDG_CACHE_HOME=/data/runs/.cache
export TORCHINDUCTOR_CACHE_DIR=/data/runs/.cache/torchinductor
export TRITON_CACHE_DIR=/data/runs/.cache/triton
export CUDA_CACHE_PATH=/data/runs/.cache/cuda
export USER=mei
export LOGNAME=mei
export LAUNCHER_RUN_ID=20260102-030405-calm-fox
export NOTE='it'"'"'s $HOME, `id` "quoted"'
mkdir -p -m 700 /data/runs/.cache
mkdir -p -m 700 /data/runs/.cache/home
prlimit \
  --memlock=unlimited \
  --stack=67108864 \
  srun \
  --ntasks-per-node=1 \
  --nodes=2 \
  --kill-on-bad-exit=0 \
  --export=ALL \
  --no-container-entrypoint \
  --no-container-mount-home \
  --no-container-remap-root \
  '--container-image=nvcr.io#nvidia/pytorch:25.06-py3' \
  --container-workdir=/data/runs/.code/c0de \
  --container-mounts=/data/runs/20260102-030405-calm-fox:/data/runs/20260102-030405-calm-fox,/data/runs/.cache:/data/runs/.cache,/home/mei/.api_key:/run/launcher/API_KEY:ro,/data/runs/.code/c0de:/data/runs/.code/c0de:ro \
  --container-env=NVIDIA_VISIBLE_DEVICES,LANG,PYTHONNOUSERSITE,XDG_CACHE_HOME,TORCHINDUCTOR_CACHE_DIR,TRITON_CACHE_DIR,CUDA_CACHE_PATH,USER,LOGNAME,LAUNCHER_RUN_ID,NOTE,CUDA_VISIBLE_DEVICES,LAUNCHER_ATTEMPT,MASTER_ADDR \
  /usr/bin/env \
  HOME=/data/runs/.cache/home \
  /bin/sh \
  -c \
  'ulimit -S -c 0; API_KEY=$(cat "$1") && export API_KEY || exit 1; shift; exec "$@"' \
  sh \
  /run/launcher/API_KEY \
  python3 \
  -m \
  torch.distributed.run \
  --nnodes=2 \
  --node-rank="$SLURM_NODEID" \
  -m \
  amp_launcher.recipes.mnist.train_torch \
  amp=o2 \
  batch=512 \
  run=/data/runs/20260102-030405-calm-fox
