# shellcheck shell=sh
# An sshd for one connection, on standard input and output, in a job's environment. $1 is the public key that may log in;
# without one it only says who would.
umask 077
place=$(mktemp -d) || exit 3
trap 'rm -rf "$place"' EXIT
trap 'exit 129' HUP TERM

find_in_folders() { # name, folders
  name=$1
  shift
  for folder; do
    [ ! -x "$folder/$name" ] || { echo "$folder/$name" && return; }
  done
}

sshd=$(command -v sshd || find_in_folders sshd /usr/sbin /usr/local/sbin)
if [ -z "$sshd" ] || ! command -v ssh-keygen >"$place/keygen"; then
  echo "error: there is no sshd where the run is; it needs OpenSSH's server (apt install openssh-server)" >&2
  exit 3
fi
if [ -z "$1" ]; then
  id -un || exit 3
  exit
fi
ssh-keygen -q -t ed25519 -N '' -f "$place/host" || exit 3
printf '%s\n' "$1" >"$place/key"
export -p >"$place/environment"
pwd >"$place/folder"
cat >"$place/session" <<'END'
command=$SSH_ORIGINAL_COMMAND terminal=$TERM
. "$1/environment"
export TERM="$terminal"
cd "$(cat "$1/folder")" || exit
[ -z "$command" ] || exec "${SHELL:-/bin/sh}" -c "$command"
exec "${SHELL:-/bin/sh}"
END
cat >"$place/config" <<END
HostKey "$place/host"
AuthorizedKeysFile "$place/key"
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PidFile none
PrintMotd no
PrintLastLog no
ForceCommand exec sh "$place/session" "$place"
Subsystem sftp $(find_in_folders sftp-server /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh /usr/libexec)
END
[ "$(id -u)" != 0 ] || mkdir -p -m 755 /run/sshd
"$sshd" -i -f "$place/config" || : # 255 where the client has gone, which is how it ends
