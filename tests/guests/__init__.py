"""Scripts that nobody here wrote compute the same under the launcher as alone, but for the mode asked for.

A guest is a function of a family file, FRAMEWORK_FAMILY.py, such as torch_autocast.py. It is never imported: the lines
of its body, after those of head_FRAMEWORK.py, are a script's. To add one, write the function, and above it

    @guest(o0="proved", o1="proved")

with the modes to run it in, and the verdict in each; None where any verdict is right, `nothing to prove` where no
optimizer stepped and no gradient was computed. Modes: `o0` and `o1` are `amp=MODE`. `script` is the hand-written twin
at `amp=o1 train.precision=script`. Each is compared with plain Python: o0 with the script alone, o1 and script with the
twin, the script in which `with by_hand():` is autocast (`by_hand` is no context anywhere else; write it around forward
and loss). Before a script in torch TF32 is switched on or off, in plain Python and under the launcher alike: for half
of the scripts on in o0 and off in the other modes, for the rest vice versa; not with `fresh` and `imported`. Compared
are exit code, what is printed, files written where the script started, random-number state, and the value of every
global of the script: tensors, modules, optimizers, numbers, texts, and lists and dictionaries of them (`state.py`).
Only the verdict is looked at where it is to be `contradicted`, which ends the script. Other arguments of `guest`, all
literals:
    words=["tf32=true"]  further words for the launcher
    environ={"A": "1"}   variables, for plain Python too
    fresh=True           a new interpreter each, for what happens at import; slow, as others are forked from a process
    imported="torch"     forked from a process that has imported this module alone; one process for all
    fails=["o1"]         modes that don't hold yet: the test fails once they do
`pytest tests/guests -k NAME` runs one. Two seconds each is the limit, since the gate runs all of them.
"""
