#!/bin/bash
# Runs a script on a host made of namespaces: host.sh SCRIPT PROGRAM…
#
#	outside 198.51.100.9 ═ nic ─ host 198.51.100.1
#
# /dev/shm, /run, /etc, /opt and /var are its own, so engines find and leave nothing
# of the machine's. Containers are made of $rootfs, which has cleat, in the control
# group $group. Each line of the answer begins with what it is about.
set -u
exec unshare --mount --pid --net --fork --kill-child --mount-proc bash -c '
set -u
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /dev/shm
mount -t tmpfs -o mode=755 none /run
for d in etc opt var; do
	mkdir -p /dev/shm/over/$d/upper /dev/shm/over/$d/work
	mount -t overlay -o lowerdir=/$d,upperdir=/dev/shm/over/$d/upper,workdir=/dev/shm/over/$d/work none /$d
done
for d in containers docker containerd lxc nerdctl cni; do
	test -d /var/lib/$d && mount -t tmpfs none /var/lib/$d
done
# crun wants one version of control groups
test -d /sys/fs/cgroup/unified && mount -t tmpfs none /sys/fs/cgroup/unified
unset $(env | grep -oE "^(DOCKER|CONTAINER|XDG|PODMAN|STORAGE|LXC)[A-Z_]*")
group=cleat-engines-$(basename $1 .sh)
rootfs=/dev/shm/rootfs
mkdir -p $rootfs/{dev,etc,proc,run,sys,tmp}
cp "$(command -v cleat)" $rootfs/cleat
serve="/cleat traffic serve --listen :5210"

ip link set lo up
unshare --net sleep infinity &
there=$!
until [ "$(readlink /proc/$there/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
outside="nsenter --target $there --net"
ip link add nic type veth peer name wire netns $there
ip link set nic addrgenmode none up
ip address add 198.51.100.1/24 dev nic
$outside ip address add 198.51.100.9/24 dev wire
$outside ip link set wire up
export CLEAT_STATE_DIR=/dev/shm/state

. "${0%/*}/story.sh"
. "$1"
' "$0" "$@"
