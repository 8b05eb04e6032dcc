"""What a script sees of Python, its process and its place."""


@guest(o0="unknown", fresh=True)
def main_search_path_and_an_exit_in_the_middle():
    import atexit
    import os
    import sys
    from pathlib import Path

    atexit.register(lambda: Path("at exit.txt").write_text(sys.modules["__main__"].__name__ + repr(sorted(globals()))))
    here = os.getcwd()
    main = sys.modules["__main__"]
    attributes = [
        (name, repr(value).split(" at 0x")[0].replace(here, "HERE"))
        for name, value in vars(main).items()
        if name.startswith("__")
    ]
    is_main = vars(main) is globals()
    path = [entry.replace(here, "HERE") for entry in sys.path]
    argv = [word.replace(here, "HERE") for word in [*sys.argv, *sys.orig_argv]]
    mask = os.umask(0o22)
    losses = train(2)
    variables = {name: text for name, text in os.environ.items() if name != state.PATH and "INDUCTOR" not in name}
    here = "HERE"
    sys.exit(7)


@guest(o0="proved", script="proved")
def files_beside_it():
    from pathlib import Path

    beside = Path(__file__).parent
    (beside / "out").mkdir()
    losses = train()
    torch.save(net.state_dict(), beside / "out" / "last.pt")
    Path("log.txt").write_text(repr(losses))
    found = sorted(path.name for path in beside.iterdir())
    itself = Path(__file__).read_text().count("def files_beside_it")


@guest(o0="proved")
def pickles_of_its_own_classes():
    import io
    import pickle

    class Settings:
        def __init__(self):
            self.rate = 0.1

    losses = train()
    saved = pickle.dumps(Settings())
    loaded = pickle.loads(saved).rate
    buffer = io.BytesIO()
    torch.save({"settings": Settings(), "net": net}, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    same = type(again["settings"]) is Settings
    kept = again["net"]


@guest(o0="proved")
def workers_by_fork_and_forkserver():
    import os
    import sys

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            main = sys.modules["__main__"]
            return torch.tensor(float(index**2)), os.path.basename(main.__file__), Squares.__module__

    if __name__ == "__main__":
        seen = {}
        for how in ("fork", "forkserver"):
            loader = torch.utils.data.DataLoader(Squares(), 2, num_workers=1, multiprocessing_context=how)
            seen[how] = [(values, list(names), list(modules)) for values, names, modules in loader]
        losses = train()


@guest(o0="proved", o1="proved")
def ranks_by_torch_spawn():
    import os

    def work(rank, queue):
        queue.put((rank, os.path.basename(__file__), train()))

    if __name__ == "__main__":
        queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
        torch.multiprocessing.spawn(work, (queue,), nprocs=1)
        told = queue.get()


@guest(o0="unknown")
def an_exit_at_once():
    import os

    losses = train(2)
    print("ended", flush=True)
    os._exit(3)


@guest(o0="unknown")
def a_program_that_takes_its_place():
    import os
    import sys

    losses = train()
    os.environ["AGAIN"] = "yes"
    text = (
        "import os, sys; print(os.environ['AGAIN'], os.getcwd(), os.path.samefile(sys.argv[1], 'train.py'), sys.argv)"
    )
    os.execv(sys.executable, [sys.executable, "-c", text, *sys.argv])


@guest(o0="proved")
def handlers_of_signals():
    import os
    import signal

    before = [
        str(signal.getsignal(number)).split(" at ")[0] for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    ]
    asked = []
    signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(frame.f_globals["__name__"]))
    losses = train(2)
    os.kill(os.getpid(), signal.SIGUSR1)
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        asked.append("from the keyboard")
    losses += train(2)


@guest(o0="proved", script="proved")
def whatever_is_raised_is_caught():
    caught = []
    for step in range(4):
        try:
            losses = train(1)
            if step == 1:
                raise SystemExit(3)
            if step == 2:
                raise KeyboardInterrupt
        except BaseException as error:
            caught.append(repr(error))


@guest(o0="proved")
def threads_that_outlive_it():
    import threading
    from pathlib import Path

    def wait_and_write():
        threading.main_thread().join()
        Path("after.txt").write_text(threading.current_thread().name)

    losses = train(3)
    names = sorted(thread.name for thread in threading.enumerate() if thread is threading.main_thread())
    threading.Thread(target=wait_and_write, name="writer").start()
