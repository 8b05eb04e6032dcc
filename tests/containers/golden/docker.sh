mkdir -p -m 700 /data/runs/.cache
mkdir -p -m 700 /data/runs/.cache/home
docker rm --force run-20260102-030405-calm-fox-"$SLURM_NODEID"
docker \
  run \
  --rm \
  --init \
  --pull=never \
  --log-driver=none \
  --name=run-20260102-030405-calm-fox-"$SLURM_NODEID" \
  --network=host \
  --ipc=host \
  --ulimit=memlock=-1 \
  --ulimit=stack=67108864 \
  --user=1001:1002 \
  --group-add=1002 \
  --group-add=5000 \
  '--gpus="device=2,3"' \
  --workdir=/data/runs/.code/c0de \
  '--mount=type=bind,source=/data/image net,target=/data/imagenet,readonly' \
  --mount=type=bind,source=/data/runs/20260102-030405-calm-fox,target=/data/runs/20260102-030405-calm-fox \
  --mount=type=bind,source=/data/runs/.cache,target=/data/runs/.cache \
  '--mount=type=bind,source=/home/mei/.api key,target=/run/launcher/API_KEY,readonly' \
  --mount=type=bind,source=/data/runs/.code/c0de,target=/data/runs/.code/c0de,readonly \
  --env=HOME=/data/runs/.cache/home \
  --env=LANG=C.UTF-8 \
  --env=PYTHONNOUSERSITE=1 \
  --env=XDG_CACHE_HOME=/data/runs/.cache \
  --env=TORCHINDUCTOR_CACHE_DIR=/data/runs/.cache/torchinductor \
  --env=TRITON_CACHE_DIR=/data/runs/.cache/triton \
  --env=CUDA_CACHE_PATH=/data/runs/.cache/cuda \
  --env=USER=mei \
  --env=LOGNAME=mei \
  --env=LAUNCHER_RUN_ID=20260102-030405-calm-fox \
  '--env=NOTE=it'"'"'s $HOME, `id` "quoted"' \
  --env=LAUNCHER_ATTEMPT \
  --env=MASTER_ADDR \
  --entrypoint= \
  nvcr.io/nvidia/pytorch:25.06-py3 \
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
