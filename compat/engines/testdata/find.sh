#!/bin/bash
# Containers of an ordinary user's Podman and Apptainer, found by name by root and
# by the user. Each line of the answer begins with what it is about.
set -u
. /run/cleat/office.sh
image
cp /bin/busybox /tmp/image/bin/
mkdir -p /tmp/image/{dev,proc,root,sys,tmp,var/tmp,home}
touch /tmp/image/etc/{passwd,group,hosts,resolv.conf}
chown -R tester:tester /tmp/image
cd /home/tester
engine() { as podman --cgroup-manager=cgroupfs --storage-driver=vfs --log-level=error "$@"; }
as apptainer -q build --sandbox /tmp/box /tmp/image
as apptainer -q instance start --userns --net --network none /tmp/box sim
as apptainer -q instance start --userns /tmp/box near
tar -C /tmp/image -cf /tmp/image.tar .
engine import -q /tmp/image.tar test > /dev/null
engine run -d --name web --network none test sleep 1000 > /dev/null
engine create --name idle --network none test sleep 1000 > /dev/null
engine rename web front

# told prints what is found, with the numbers that the engine has replaced.
told() { # USER NAME PID
	local net
	net=$(readlink "/proc/$3/ns/net" | tr -dc 0-9)
	$1 /run/cleat/found "$2" | sed "s/^/$1 /; s/ pid $3 / pid PID /; s/ net $net / net NET /"
}
root() { "$@"; }
as_user() { as "$@"; }
front=$(engine inspect -f '{{.State.Pid}}' front)
instance() { as apptainer instance list --json "$1" | jq '.instances[0].pid'; }
sim=$(instance sim) near=$(instance near)
id=$(engine inspect -f '{{.ID}}' front | cut -c1-12)
told as_user front "$front"
told as_user "$id" "$front" | sed "s/ $id:/ id:/"
told as_user sim "$sim"
told as_user idle 1
told root front "$front"
told root podman:tester/"$id" "$front" | sed "s/ podman:tester.$id:/ id:/"
told root apptainer:tester/sim "$sim" | sed 's/ apptainer:tester.sim:/ sim:/'
told root podman:tester/idle 1 | sed 's/ podman:tester.idle:/ idle:/'
for who in root as_user; do
	told $who podman:tester/front "$front"
	told $who apptainer:tester/near "$near"
done
engine rm -f -t 0 -a > /dev/null
as apptainer -q instance stop --all > /dev/null
