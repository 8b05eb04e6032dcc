# paddle: NVIDIA's PaddlePaddle image and the digits data set
# Build: docker build --tag=paddle --file=paddle.Dockerfile .
# Run: python -m launcher container=docker image=paddle framework=paddle amp=o1

FROM nvcr.io/nvidia/paddlepaddle:24.05-py3

LABEL org.opencontainers.image.title=paddle

RUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir 'scikit-learn==1.5.2'
