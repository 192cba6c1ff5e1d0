#!/bin/bash
# The first process of a host with container engines: enginehost.sh PROGRAM READY. It is in its own mount and PID
# namespace. /run, /etc, /opt, /var and the engines' directories are the host's own, so engines find and leave nothing of
# the machine's. Containers are made of /run/rootfs, which has PROGRAM. The file READY exists when all is set up.
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /run
for d in etc opt var; do
	mkdir -p /run/over/$d/upper /run/over/$d/work
	mount -t overlay -o lowerdir=/$d,upperdir=/run/over/$d/upper,workdir=/run/over/$d/work none /$d
done
for d in cleat containers docker containerd; do
	mkdir -p /var/lib/$d
	mount -t tmpfs -o mode=755 none /var/lib/$d
done
# crun wants one version of control groups
if test -d /sys/fs/cgroup/unified; then mount -t tmpfs none /sys/fs/cgroup/unified; fi
mkdir -p /run/rootfs/{dev,etc,proc,run,sys,tmp} /run/docker/plugins /run/helpers /etc/containers/networks
cp "$1" /run/rootfs/box
echo nameserver 192.0.2.253 >/etc/resolv.conf # which does not answer
echo '{}' >/run/config.json # of Docker's client
touch "$2"
sleep infinity &
while true; do wait || true; done # for orphans as well
