#!/bin/bash
# Runs a script as root of a machine that is a copy of a tree:
# enter.sh TREE PROGRAMS SCRIPT [ARG...]
#
# The machine has its own network, processes, mounts, cgroups and /dev with a
# TUN that everybody may open. Writes go to memory and are gone at the end. The
# files of the directory PROGRAMS are in /run/cleat. TREE is only read.
set -eu
exec unshare --mount --net --pid --fork --kill-child --mount-proc bash -c '
set -eu
tree=$1 programs=$2 script=$3
shift 3
mount --make-rprivate /
mount -t tmpfs -o mode=755 machine /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir="$tree",upperdir=/mnt/upper,workdir=/mnt/work machine /mnt/root
root=/mnt/root
mount -t proc proc $root/proc
mount -t sysfs sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
mount -t tmpfs -o mode=755 dev $root/dev
mkdir $root/dev/net $root/dev/pts $root/dev/shm
node() { mknod -m 666 $root/dev/$1 c $2 $3; }
node null 1 3; node zero 1 5; node full 1 7; node random 1 8; node urandom 1 9; node tty 5 0; node fuse 10 229; node net/tun 10 200
ln -s /proc/self/fd $root/dev/fd
for i in 0:stdin 1:stdout 2:stderr; do ln -s fd/${i%:*} $root/dev/${i#*:}; done
mount -t devpts -o newinstance,ptmxmode=0666 devpts $root/dev/pts
ln -s pts/ptmx $root/dev/ptmx
mount -t tmpfs -o mode=1777 shm $root/dev/shm
for d in tmp run home; do mount -t tmpfs -o mode=755 $d $root/$d; done
chmod 1777 $root/tmp
mkdir $root/run/cleat $root/run/old
install -m 755 "$programs"/* $root/run/cleat/
install -m 755 "$script" $root/run/cleat/script
install -m 644 "$(dirname "$script")"/office.sh $root/run/cleat/office.sh
cd $root
pivot_root . run/old
cd /
umount -l /run/old
ip link set lo up
exec /run/cleat/script "$@"
' enter "$@"
