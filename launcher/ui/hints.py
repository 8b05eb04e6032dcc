"""Remedies for known messages of failed jobs: a log says what broke, seldom what to change."""

from __future__ import annotations

KNOWN = (
    ("error setting rlimit", "this machine may not raise limits: say container.limits=null"),
    ("could not select device driver", "install NVIDIA's container toolkit and restart Docker"),
    ("driver version is insufficient", "take an older image, or a newer driver; `image list` has what each needs"),
    ("driver on your system is too old", "take an older build of torch, or a newer driver"),
    ("sees no CUDA GPU here", "the job was given none, or this build is for another driver: `nvidia-smi` there tells"),
    ("no kernel image is available", "this build has no code for that GPU: take a newer one, or a newer image"),
    ("Requesting capability set", "Apptainer needs more privileges than root has here: run as an ordinary user"),
    ("unresolvable CDI devices", "describe the GPUs to the engine: `nvidia-ctk cdi generate`"),
    ("No space left on device", "make room there, or name another folder with run_root="),
    ("user namespace", "ask for user namespaces, or for Apptainer's setuid package"),
    ("Transport endpoint is not connected", "unpack the image: a .sif's file system ends with a signal"),
    ("environment variable RANK expected", "train.processes=N starts a script by torchrun, which sets RANK"),
)


def known(message: str) -> str:
    """The remedy for the messages of a failed job; empty if none is known."""
    return next((remedy for part, remedy in KNOWN if part in message), "")
