#!/bin/bash
# Root attaches an ordinary user's containers, of Podman and Apptainer, to a bridge
# and to the network of the host's card. Each line of the answer begins with what
# it is about.
set -u
. /run/cleat/office.sh
image
cp /bin/busybox /run/cleat/cleat /tmp/image/bin/
mkdir -p /tmp/image/{dev,proc,root,sys,tmp,var/tmp,home}
touch /tmp/image/etc/{passwd,group,hosts,resolv.conf}
chown -R tester:tester /tmp/image
cd /home/tester
engine() { as podman --cgroup-manager=cgroupfs --storage-driver=vfs --log-level=error "$@"; }
serve="/bin/cleat traffic serve --listen :5210"
as apptainer -q build --sandbox /tmp/box /tmp/image
tar -C /tmp/image -cf /tmp/image.tar .
engine import -q /tmp/image.tar test > /dev/null
export CLEAT_STATE_DIR=/tmp/state
PATH=/run/cleat:$PATH

# wiring is all that attaching may change on the host.
wiring() {
	ip -details link
	for what in "-brief address" "route show table all" "-6 route show table all" rule "-6 rule"; do ip $what; done
	cat /proc/sys/net/ipv4/ip_forward
	nft list ruleset 2>/dev/null
}
told() { # ABOUT ARGUMENTS…
	local about=$1; shift
	cleat "$@" > /tmp/said 2>&1
	echo "exit $?" >> /tmp/said
	sed "s/^/$about: /" /tmp/said
}
reach() { "$@" --duration 50ms > /dev/null 2>&1 && echo reached || echo not reached; }

# life attaches ENGINE's container NAME, whose process is PID, and ends it by STOP….
life() { # ENGINE NAME PID STOP…
	local engine=$1 name=$2 pid=$3 ref=$1:tester/$2
	shift 3
	wiring > /tmp/before
	nsenter --target $pid --net sh -c 'ip -details link; ip -brief address; ip route' > /tmp/inside
	told "$name bridge" attach $ref bridge br0 --ip 203.0.113.30/24,2001:db8::30/64 --masquerade --name lan0
	told "$name macvlan" attach $ref macvlan ext0 --ip 192.0.2.30/24 --name lan1
	told "$name ls" ls
	reach cleat traffic rr 203.0.113.30:5210 | sed "s/^/$name from the host: /"
	reach $outside cleat traffic rr 192.0.2.30:5210 | sed "s/^/$name from outside: /"
	told "$name detach" detach $ref lan1
	told "$name detach" detach $ref
	wiring > /tmp/after
	nsenter --target $pid --net sh -c 'ip -details link; ip -brief address; ip route' > /tmp/inside2
	cmp /tmp/inside /tmp/inside2 && cmp /tmp/before /tmp/after && echo "$name detached: everything as before"
	cleat attach $ref macvlan ext0 --ip 192.0.2.30/24 --check-duplicate=thorough > /tmp/ended 2>&1 &
	local attaching=$!
	until nsenter --target $pid --net ip link show eth0 > /dev/null 2>&1; do sleep 0.01; done
	"$@" > /dev/null 2>&1
	wait $attaching
	echo "exit $?" >> /tmp/ended
	sed "s/^/$name ended: /" /tmp/ended
}

engine run -d --name web --network none test $serve > /dev/null
life podman web $(engine inspect -f '{{.State.Pid}}' web) engine kill web
as apptainer -q instance start --userns --net --network none /tmp/box sim
as apptainer exec instance://sim $serve > /dev/null 2>&1 &
life apptainer sim $(as apptainer instance list --json sim | jq '.instances[0].pid') as apptainer -q instance stop sim
engine rm -f -t 0 -a > /dev/null
