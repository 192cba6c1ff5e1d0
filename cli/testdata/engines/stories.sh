# Sourced by scripts that tell stories: functions story_NAME of an engine on networks of Cleat. Each story
# says "done" at its end, and before that what is not as expected. ONLY="NAME…" runs only some.
#
# A script defines stop_all, which removes all containers, and pid CONTAINER.
only=${ONLY:-}

# has_box puts the program box, all that containers have, into $rootfs and PATH.
has_box() {
	mkdir -p /dev/shm/bin
	cp "$(command -v cleat)" /dev/shm/bin/
	cp "$(command -v box)" /dev/shm/bin/box
	PATH=/dev/shm/bin:$PATH
	cp /dev/shm/bin/box $rootfs/box
}

# story runs a function. What it leaves is removed.
story() {
	[ -z "$only" ] || [[ " $only " = *" $1 "* ]] || return
	name=$1
	local begun=$(date +%s%N)
	"story_$1"
	stop_all
	cleat net ls | tail -n +2 | cut -d' ' -f1 | while read -r n; do cleat net rm --force $n >/dev/null; done
	local took=$((($(date +%s%N) - begun) / 1000000))
	echo "$name: done"
	echo "time: $name $took ms"
}
bad() { echo "$name: $*" | tr '\n' ';'; echo; }
# is EXPECTED COMMAND… checks that the output has a text.
is() {
	local want=$1 got
	shift
	got=$("$@" 2>&1)
	[[ -n "$want" && "$got" = *"$want"* ]] || bad "$* says \"$got\", want \"$want\""
}
isnt() {
	local not=$1 got
	shift
	got=$("$@" 2>&1)
	[[ "$got" != *"$not"* ]] || bad "$* says \"$got\""
}
# soon waits until a command's output has a text.
soon() {
	local want=$1 got
	shift
	for _ in $(seq 80); do
		got=$("$@" 2>&1)
		[[ "$got" != *"$want"* ]] || return
		sleep 0.05
	done
	bad "$* says \"$got\", want \"$want\" soon"
}
# gone_soon waits until it no longer has it: $patience seconds, at least.
gone_soon() {
	local not=$1 got
	shift
	for _ in $(seq $((${patience:-4} * 20))); do
		got=$("$@" 2>&1)
		[[ "$got" = *"$not"* ]] || return
		sleep 0.05
	done
	bad "$* says \"$got\", want no \"$not\""
}
# within MS COMMAND… checks how long a command takes.
within() {
	local most=$1 begun took
	shift
	begun=$(date +%s%N)
	"$@" >/dev/null || bad "$* failed"
	took=$((($(date +%s%N) - begun) / 1000000))
	[ $took -le $most ] || bad "$* took $took ms, want at most $most"
}
ok() { local got; got=$("$@" 2>&1) || bad "$* failed: $got"; }
fails() { local got; got=$("$@" 2>&1) && bad "$* succeeded: $got"; }
# at NAME COMMAND… runs a command in a container, and net NAME COMMAND… one of the host in its network.
at() { local p; p=$(pid $1); shift; nsenter -t $p -n -m -r -- "$@"; }
net() { local p; p=$(pid $1); shift; nsenter -t $p -n -- "$@"; }
plain() { ip netns add $1 && mkdir -p /etc/netns/$1 && : >/etc/netns/$1/resolv.conf && ok cleat net connect "${@:2}" $1; }
unplain() { ip netns del $1; rm -rf /etc/netns/$1; cleat net prune >/dev/null; }
# there NAME COMMAND… runs a command in a plain namespace, with its own resolv.conf.
there() { ip netns exec "$@"; }
outside_asks() { $outside box ask "$@"; }

# nothing_is_left STATE is the last story: no link, table, namespace or file remains.
nothing_is_left() {
	name=nothing_left
	for dir in docker networks attachments resolvers; do
		test -z "$(ls -A $1/$dir 2>/dev/null)" || bad "$dir has $(ls $1/$dir)"
	done
	local claims
	claims=$(find $1/ports -mindepth 2 2>/dev/null)
	test -z "$claims" || bad "ports: $claims"
	isnt clh ip link
	isnt cl- ip link
	isnt veth ip link
	isnt cleat-net nft list tables
	test -z "$(ls -A /run/netns 2>/dev/null)" || bad "namespaces: $(ls /run/netns)"
	echo "nothing_left: done"
}
