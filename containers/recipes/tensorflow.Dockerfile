# tensorflow: NVIDIA's TensorFlow 2 image and the digits data set; the last release, of early 2025
# Build: docker build --tag=tensorflow --file=tensorflow.Dockerfile .
# Run: python -m launcher container=docker image=tensorflow framework=tensorflow amp=o1

FROM nvcr.io/nvidia/tensorflow:25.02-tf2-py3

LABEL org.opencontainers.image.title=tensorflow

RUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir 'scikit-learn==1.5.2'
