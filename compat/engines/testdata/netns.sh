#!/bin/bash
# cleat run --netns for a container that an engine has made without a network:
# netns.sh podman|apptainer. Each line of the answer begins with what it is about.
set -u
. /run/cleat/office.sh
image
case $1 in
podman)
	engine() { as podman --cgroup-manager=cgroupfs --storage-driver=vfs --log-level=error "$@"; }
	cd /home/tester
	tar -C /tmp/image -cf /tmp/image.tar .
	engine import -q /tmp/image.tar test > /dev/null
	engine run -d --name web --network none test whoami tcp:8081 > /dev/null
	echo "start: $?"
	pid=$(engine inspect -f '{{.State.Pid}}' web)
	inside() { engine exec web "$@" 2>&1; }
	finish() { engine rm -f -t 0 web > /dev/null; }
	;;
apptainer)
	mkdir -p /tmp/image/{dev,etc,proc,root,sys,tmp,var/tmp,home}
	touch /tmp/image/etc/{passwd,group,hosts,resolv.conf}
	chown -R tester:tester /tmp/image
	cd /home/tester
	as apptainer -q build --sandbox /tmp/box /tmp/image
	as apptainer -q instance start --userns --net --network none /tmp/box web
	echo "start: $?"
	pid=$(as apptainer instance list --json web | jq '.instances[0].pid')
	inside() { as apptainer -q exec --userns instance://web "$@" 2>&1; }
	inside whoami tcp:8081 &
	finish() { as apptainer -q instance stop web > /dev/null; }
	;;
esac
as /run/cleat/cleat run --netns "$pid" -p 8080:8081 2> /tmp/said &
job=$!
for i in $(seq 100); do grep -q 'is up' /tmp/said && break; sleep 0.05; done
sed 's/^/cleat said: /' /tmp/said
inside ip -o addr show scope global | sed 's/^/address: /'
echo "out: $(inside wget -T 5 -qO- http://192.0.2.1:8000/)"
echo "name: $(inside nslookup -type=a outside.example 10.0.2.3 | grep -c 203.0.113.7)"
echo "in from outside: $($outside bash -c "$(declare -f fetch); fetch 192.0.2.10 8080")"
# A helper that watches the namespace looks once a second.
sleep 1.5
echo "out later: $(inside wget -T 5 -qO- http://192.0.2.1:8000/)"
finish
wait $job
echo "cleat: $?"
