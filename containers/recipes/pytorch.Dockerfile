# pytorch: NVIDIA's PyTorch image as it is, which has all that training needs
# Build: docker build --tag=pytorch --file=pytorch.Dockerfile .
# Run: python -m launcher container=docker image=pytorch amp=o2

FROM nvcr.io/nvidia/pytorch:25.06-py3

LABEL org.opencontainers.image.title=pytorch
