# interactive: the PyTorch image with an SSH server, for a container that is logged in to; keys only, no passwords
# Build: docker build --tag=interactive --file=interactive.Dockerfile .
# Each container makes host keys of its own when it starts: keys in an image would be everybody's. A login gets only
# those of the image's variables that are in /etc/environment.
# Run: docker run --init --gpus=all -p 52013:22 -v KEYS:/root/.ssh/authorized_keys:ro interactive sh -c 'ssh-keygen -A && env -u HOME >>/etc/environment && exec /usr/sbin/sshd -D -e'

FROM nvcr.io/nvidia/pytorch:25.06-py3

LABEL org.opencontainers.image.title=interactive

RUN apt-get update -y && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        openssh-server \
        rsync && \
    rm -rf /var/lib/apt/lists/*

RUN mkdir -p /run/sshd /etc/ssh/sshd_config.d && \
    printf 'PasswordAuthentication no\nPermitRootLogin prohibit-password\n' >/etc/ssh/sshd_config.d/10.conf && \
    rm -f /etc/ssh/ssh_host_*
