# Sourced by host.sh: what is done to the containers of every engine.

# say prints each line of its input with what it is about.
say() { sed "s/^/$1: /"; }

# inside runs a command in the network of the process PID.
inside() { nsenter --target "$pid" --net "$@"; }

# wiring is all that attaching may change, of one namespace.
wiring() {
	"$@" ip -details link | sed 's/ qlen .*//'
	for what in "-brief address" "route show table all" "-6 route show table all" rule "-6 rule" neighbour; do "$@" ip $what; done
	"$@" tc qdisc
	"$@" sh -c 'cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding'
	! command -v nft >/dev/null || "$@" nft list ruleset
}
look() {
	wiring env
	test -z "${pid:-}" || wiring inside
	ls $CLEAT_STATE_DIR/attachments 2>/dev/null
	ls /run/netns 2>/dev/null
}
before() { ip neighbour flush all; look >/dev/shm/before; }
# after says whether everything is as it was.
after() {
	ip neighbour flush all
	look >/dev/shm/after
	diff /dev/shm/before /dev/shm/after | say difference && cmp -s /dev/shm/before /dev/shm/after && echo "$1: everything as before"
}

# reach asks the container's server, from the host or from outside.
reach() { "$@" --duration 50ms >/dev/null && echo reached || echo not reached; }

# told runs cleat, and says what it says and how it ends.
told() { # ABOUT ARGUMENTS…
	local about=$1; shift
	cleat "$@" >/dev/shm/said 2>&1
	echo "exit $?" >>/dev/shm/said
	say "$about" </dev/shm/said
}

# all is the whole life of links in the container $name, which is $ref to its
# engine, by functions start, stop and pid_of.
all() {
	before_host
	start
	pid=$(pid_of)
	before
	told bridge attach $name bridge br0 --ip 192.0.2.10/24,2001:db8::10/64 --masquerade
	told macvlan attach $ref macvlan nic --ip 198.51.100.7/24 --name lan0
	told ls ls
	told inspect inspect $name lan0
	reach cleat traffic rr 192.0.2.10:5210 | say "host to container"
	reach cleat traffic rr '[2001:db8::10]:5210' | say "host to container, IPv6"
	reach $outside cleat traffic rr 198.51.100.7:5210 | say "outside to container"
	told graph graph $name
	told detach detach $ref lan0
	told detach detach $name eth0
	after detached

	# It ends while the neighbours are asked for its address.
	cleat attach $name macvlan nic --ip 198.51.100.7/24 --check-duplicate=thorough >/dev/shm/ended 2>&1 &
	attaching=$!
	until inside ip link show eth0 >/dev/null 2>&1; do sleep 0.01; done
	stop
	wait $attaching
	echo "exit $?" >>/dev/shm/ended
	say "ended in the middle" </dev/shm/ended
	pid=
	after_host "ended in the middle"
	told "not there" attach $name macvlan nic --ip 198.51.100.7/24

	start
	pid=$(pid_of)
	told again attach $name bridge br0 --ip 192.0.2.10/24
	stop
	pid=
	told gone ls
	told tidied detach $name eth0
	after_host tidied

	start
	told keep attach $name bridge br0 --ip 192.0.2.10/24 --keep
	comes_back "at once"
	comes_back late
	told kept keep --status
	stop
	told "keep no more" detach $name eth0
	pid=
	after_host "kept no more"
}

# comes_back has the container end and begin, and waits for its link. If that begins late,
# a keeper looks for it seldom, up to 5 s apart, where its engine tells of it.
comes_back() {
	stop
	test "$1" != late || sleep 7
	start
	pid=$(pid_of)
	local began=$(date +%s%3N)
	for try in $(seq 1000); do
		inside ip -brief address show dev eth0 2>/dev/null | grep -q 192.0.2.10/24 && break
		sleep 0.02
	done
	local took=$(($(date +%s%3N) - began))
	if test $try = 1000; then echo "$1: never"
	elif test $took -lt 2000; then echo "$1: soon, after $took ms"
	else echo "$1: after $took ms"
	fi
}
# before_host and after_host compare the host alone. What the kernel had in the
# container's network takes it a moment to let go.
before_host() { wiring env >/dev/shm/host; }
after_host() {
	for try in $(seq 100); do
		wiring env >/dev/shm/host2
		cmp -s /dev/shm/host /dev/shm/host2 && echo "$1: everything as before" && return
		sleep 0.05
	done
	diff /dev/shm/host /dev/shm/host2 | say difference
}
