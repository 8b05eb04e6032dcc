# shellcheck shell=bash
# Runs the run folders given to it: each that takes GPUs as soon as a set of them is free, any other in its turn.

exec 9<> <(:) # a pipe: a cell reports that it has its GPUs, and its starter that it has ended
waits='' number=0
for folder in "$@"; do
  number=$((number + 1))
  {
    # setsid gives each cell a session of its own, so that one can be ended without the others.
    LAUNCHER_CELL=$number LAUNCHER_WAIT=$waits setsid --wait bash "$folder/run.sh"
    echo "$number ended" >&9
  } &
  while read -r -u 9 which event && [ "$which" != "$number" ]; do :; done
  [ "$event" != refused ] || exit 75 # the first cell found its GPUs taken
  waits=yes
done
wait
