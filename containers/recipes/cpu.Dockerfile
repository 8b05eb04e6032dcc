# cpu: Debian's Python with PyTorch for CPUs: small, for tests and for machines without GPUs
# Build: docker build --tag=cpu --file=cpu.Dockerfile .
# Run: python -m launcher container=docker image=cpu device=cpu

FROM debian:bookworm-slim

LABEL org.opencontainers.image.title=cpu

RUN apt-get update -y && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates \
        python3 \
        python3-pip && \
    rm -rf /var/lib/apt/lists/*

RUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu 'numpy==1.26.4' 'scikit-learn==1.4.2' 'torch==2.6.0+cpu'
