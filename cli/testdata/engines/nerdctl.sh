# nerdctl on networks of Cleat, as doc/plugins.md says. Each story says "done" at its end, and before that
# what is not as expected.
. "${1%/*}/pages.sh"
. "${1%/*}/with_containerd.sh"
. "${1%/*}/stories.sh"
cd /dev/shm
has_box
patience=20 # the keeper looks every 10 s for containers that ended
unset CLEAT_STATE_DIR # hooks of containers have another environment
mkdir -p /etc/nerdctl
printf 'namespace = "%s"\ncgroup_manager = "cgroupfs"\n' $group >/etc/nerdctl/nerdctl.toml
echo 'nameserver 198.51.100.9' >/etc/resolv.conf

stop_all() { nerdctl ps --all --quiet | xargs -r nerdctl rm --force >/dev/null; rm -f /etc/cni/net.d/5*; }
# network NAME OPTIONS… creates a network and its list.
network() { cleat net inspect $1 >/dev/null 2>&1 || ok cleat net create "$@"; cleat net cni-conf $1 >/etc/cni/net.d/50-$1.conflist; }
# run NAME NETWORK [OPTIONS…] starts a container that serves port 80.
run() {
	local c=$1 on=$2
	shift 2
	ok nerdctl run -d --name $c --network $on "$@" image
	serves $c
}
serves() { soon ':0050 ' net $1 cat /proc/net/tcp /proc/net/tcp6; }
pid() { nerdctl inspect --format '{{.State.Pid}}' $1; }
ip4() { net $1 ip -4 -o addr show ${2:-eth0} | sed 's|.*inet \([0-9.]*\)/.*|\1|'; }
engine() { ctr --namespace $group "$@"; }
kill_containerd() { kill -9 $containerd; wait $containerd 2>/dev/null; }
# row NETWORK CONTAINER prints the container's line, with single spaces.
row() { cleat net ls $1 | tr -s ' ' | grep -w -- "$2"; }
# endpoints NETWORK counts the containers of containerd.
endpoints() { cleat net ls $1 | grep -c ' containerd '; }

story_page() {
	image=image ok page_line plugins.md "nerdctl run -d --name front"
	serves front
	is "8080:80 attached" row web front
	is "front containerd eth0 10.20.0." row web front
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	is 10.20.0. box ask 127.0.0.1:8080
	image=image ok page_line plugins.md "nerdctl run -d --name alone"
	is attached row bridge alone
}
story_names() {
	network web
	run api web
	run front web
	plain pl web
	is "$(ip4 api)" there pl box lookup api
	is "$(ip4 api)" there pl box lookup $(nerdctl inspect --format '{{.Id}}' api | cut -c1-12)
	is "$(ip4 front)" at front /box ask api:80
	is "$(row web pl | cut -d" " -f4)" at api /box lookup pl
	is "$(row web pl | cut -d" " -f4)" at api /box lookup pl.web
	is "no such host" at api /box lookup nobody
	ok cleat net deny web/front to web/api
	is timeout at front /box ask api:80
	unplain pl
}
story_ports() {
	network web
	run api web -p 8080:80 -p 127.0.0.1:8081:80
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	is refused outside_asks 198.51.100.1:8081
	is 10. box ask 127.0.0.1:8081
	is "tcp port 8080 of the host is in use by" nerdctl run --name other --network web -p 8080:80 image
	isnt "/other " cleat net ls web
	ok nerdctl rm --force api
	is refused outside_asks 198.51.100.1:8080
	is refused box ask 127.0.0.1:8081
}
story_two_networks() {
	network web
	network db --internal
	run both web --network db
	run front web
	run data db
	is "$(ip4 both eth0)" row web both
	is "$(ip4 both eth1)" row db both
	is "$(ip4 front)" at front /box ask both:80
	is "$(ip4 front)" at both /box lookup front
	is "$(ip4 data)" at both /box lookup data
	is "$(ip4 both eth1)" at both /box ask data:80
	is "no such host" at front /box lookup data
	ok nerdctl rm --force both
	isnt "/both " cleat net ls web
	isnt "/both " cleat net ls db
}
story_compose() {
	network web
	mkdir -p compose
	{
		printf 'services:\n  db: {image: image}\n  front: {image: image, ports: ["8080:80"], depends_on: [db]}\n'
		block plugins.md "external: true" yaml
	} >compose/compose.yaml
	compose() { nerdctl compose --file compose/compose.yaml --project-name shop "$@"; }
	ok compose up -d
	for c in shop-db-1 shop-front-1; do serves $c; done
	plain pl web
	is "$(ip4 shop-db-1)" at shop-front-1 /box lookup db
	is "$(ip4 shop-front-1)" at shop-front-1 /box ask db:80
	is "$(ip4 shop-db-1)" at shop-db-1 /box ask front:80
	is "$(ip4 shop-db-1)" there pl box lookup db
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	unplain pl
	ok compose down
	is 0 endpoints web
	is refused outside_asks 198.51.100.1:8080
}
story_restart() {
	network web
	run api web -p 8080:80
	ok nerdctl restart --time 0 api
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	is 1 endpoints web
	ok nerdctl stop --time 0 api # disconnects nothing: the keeper does
	gone_soon "/api " cleat net ls web
	is refused outside_asks 198.51.100.1:8080
	ok nerdctl start api
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	is 1 endpoints web
}
story_killed_container() {
	network web
	run api web -p 8080:80
	kill -9 $(pid api)
	gone_soon "/api " cleat net ls web
	is refused outside_asks 198.51.100.1:8080
	ok nerdctl start api
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	is 1 endpoints web
}
# containerd is killed while it starts containers.
story_killed_containerd() {
	network web
	run api web -p 8080:80
	local starting=()
	for n in $(seq 6); do nerdctl run -d --name c$n --network web image >/dev/null 2>&1 & starting[n]=$!; done
	soon c row web "c[1-6]"
	kill_containerd
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	wait ${starting[*]}
	start_containerd
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	is "$(pid api)" pgrep box
	run late web
	is "$(ip4 late)" at late /box ask api:80
	# nerdctl can't remove a container that was created and not started
	engine tasks ls | awk '$3 == "CREATED" { print $1 }' | while read -r id; do ok engine tasks kill --signal SIGKILL $id; done
	ok nerdctl rm --force $(nerdctl ps --all --quiet)
	# containerd 1.6 forgets some of those: their first process waits, and keeps its namespace
	pgrep -f '^runc init$' | xargs -r kill -9
	gone_soon containerd cleat net ls web
}
# A container ends while no containerd runs, which could disconnect it.
story_forgotten() {
	network web
	run api web -p 8080:80
	shim=$(ps -o ppid= $(pid api))
	ends=$(pid api)
	kill_containerd
	kill -9 $shim $ends
	gone_soon "/api " cleat net ls web
	is refused outside_asks 198.51.100.1:8080
	start_containerd
	run next web -p 8080:80
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	ok nerdctl rm --force api
	is 1 endpoints web
}
story_killed_keeper() {
	network web
	run api web -p 8080:80
	kill -9 $(cleat keep --status | sed -n 's/^a keeper runs, process //p')
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	run late web
	is "$(ip4 late)" at late /box ask api:80
	ok nerdctl rm --force api late
	is 0 endpoints web
}

typed plugins.md "cleat net cni-conf web > /etc/cni/net.d/50-web.conflist"
page_line plugins.md "cni-conf bridge --create"
start_containerd "$without_cri"
image_archive image.tar image
nerdctl load --input image.tar >/dev/null || echo "image: not loaded"
for s in page names ports two_networks compose restart killed_container killed_containerd forgotten killed_keeper; do story $s; done
nothing_is_left /var/lib/cleat
kill $containerd; wait $containerd
