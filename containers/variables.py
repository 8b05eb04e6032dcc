"""Names of environment variables that are set on the way to a job, by what sets them.

A user can't set them for a job, nor pass them on from a shell; `launcher/config/job_environment.py` and `preflight.py`
say which rule holds where.
"""

from __future__ import annotations

DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Set by the launcher: another value would change which GPUs a job sees."""
OWNED = ("HOME", "PYTHONNOUSERSITE", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Set from a container's description; a user can't set them as well."""
RENDEZVOUS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")
"""Set for one process of one job."""
SHELL = (
    *("PWD", "OLDPWD", "SHLVL", "_", "UID", "EUID", "GID", "PPID", "IFS", "OPTIND", "SHELLOPTS"),
    *("RANDOM", "SRANDOM", "SECONDS", "LINENO", "EPOCHSECONDS", "EPOCHREALTIME", "HISTCMD", "GROUPS", "DIRSTACK"),
    *("FUNCNAME", "PIPESTATUS", "PROMPT_COMMAND", "APPEND_PATH", "PREPEND_PATH"),
)
"""Set or understood by a shell on the way, the script's or the runtime's own."""

LAUNCHER_PREFIXES = ("LAUNCHER_", "SLURM_", "SBATCH_", "APPTAINERENV_", "SINGULARITYENV_")
"""Of the launcher, Slurm, and what Apptainer passes into a container."""
JOB_PREFIXES = (*LAUNCHER_PREFIXES, "SRUN_", "PMI_", "PMIX_", "PYXIS_")
"""Of one job."""
RUNTIME_PREFIXES = ("BASH", "ENROOT_", "APPTAINER_", "SINGULARITY_")
"""Of bash and the container runtimes."""
