"""What can be done with runs, a module for each verb with `main(arguments) -> exit code`. Each imports only its own."""

CALLED_ELSEWHERE = {
    **dict.fromkeys(("stop", "kill", "scancel", "abort"), "cancel"),
    **dict.fromkeys(("status", "list", "ps", "queue", "jobs", "show"), "ls"),
    **dict.fromkeys(("delete", "remove", "clean"), "rm"),
    **dict.fromkeys(("restart", "continue", "requeue"), "resume"),
    **dict.fromkeys(("start", "submit", "launch", "train"), "run"),
    **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("attach", "follow"), "watch"),
    **dict.fromkeys(("replay", "check"), "verify"),
    **dict.fromkeys(("dag", "flow", "pipeline", "workflow"), "chain"),
    **dict.fromkeys(("exec", "ssh", "bash"), "shell"),
}
"""What other programs call a verb."""

VERBS = {
    "run": "check and start a job; the default",
    "cmd": "run a program that is not Python, such as a shell script",
    "up": "start an interactive container or allocation",
    "down": "end what up started",
    "chain": "start jobs that need each other, from one file",
    "plan": "show what would be started, and which file or word set each value",
    "compare": "arms of one job in turn on the same devices: what a mode gains and costs",
    "ls": "list runs, or show one",
    "logs": "show or follow a run's output",
    "watch": "follow runs while they train",
    "cancel": "stop runs",
    "resume": "continue a run that stopped",
    "verify": "replay steps of a run, and name the first tensor that differs by a bit",
    "report": "tables and charts from runs",
    "fetch": "bring what runs on other hosts left",
    "export": "write a run's weights as one file, or give runs to TensorBoard, MLflow or wandb",
    "rm": "move runs to the trash, or delete them",
    "shell": "open a terminal in a job's environment",
    "image": "list, show and fetch container images",
    "doctor": "check this machine or a cluster, and say what to fix",
}


def help_of(verb: str, words: list[str]) -> str:
    """The help of a verb: its `HELP`, or what it prints for these words."""
    import contextlib
    import importlib
    import io

    command = importlib.import_module(f"launcher.commands.{verb}")
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        print(command.HELP) if hasattr(command, "HELP") else command.main(words)
    return text.getvalue().rstrip("\n")
