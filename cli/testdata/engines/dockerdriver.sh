# Docker with networks of Cleat: `docker network create -d cleat`. Each story says "done" at its end,
# and before that what is not as expected.
. "${1%/*}/stories.sh"
cd /dev/shm
has_box
mkdir -p /etc/docker
echo 'nameserver 198.51.100.9' >/dev/shm/resolv.conf
cp /dev/shm/resolv.conf /etc/resolv.conf
plugin=/run/docker/plugins/cleat.sock

# The client of the same version, if there are several.
docker() { command $(ls /usr/bin/docker 2>/dev/null || echo docker) "$@"; }
engine() { docker --config /dev/shm "$@" 2>&1; }
start_dockerd() {
	rm -f /dev/shm/dockerd.pid
	dockerd --config-file /dev/shm/daemon.json --host unix:///run/docker.sock --pidfile /dev/shm/dockerd.pid --data-root /dev/shm/docker \
		--exec-root /run/docker --bridge none --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent /$group "$@" >>dockerd.log 2>&1 &
	daemon=$!
	until engine version >/dev/null; do kill -0 $daemon || { cat dockerd.log; exit 1; }; sleep 0.05; done
}
# The keeper runs as systemd would run it: its socket exists before and after it.
start_keeper() {
	box hold $plugin /dev/shm/keeper.pid cleat keep --docker-socket $plugin >>keep.log 2>&1 &
	holder=$!
	until [ -s /dev/shm/keeper.pid ] && cleat keep --status | grep -q "a keeper runs"; do sleep 0.01; done
}
kill_keeper() { local pid; pid=$(cat keeper.pid); kill -9 $pid; }
stop_all() { engine ps -aq | xargs -r $(ls /usr/bin/docker 2>/dev/null || echo docker) --config /dev/shm rm -f >/dev/null; engine network ls -q --filter driver=cleat | xargs -r $(ls /usr/bin/docker 2>/dev/null || echo docker) --config /dev/shm network rm >/dev/null; }

network() { ok engine network create -d cleat --ipam-driver cleat "$@"; }
# run NAME NETWORK [OPTIONS…] starts a container that serves ports 80 and 81.
run() {
	local c=$1 on=$2
	shift 2
	ok engine run -d --name $c --network $on "$@" image /box serve 80 81
	for _ in $(seq 100); do # until it serves port 81
		net $c cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ':0051 ' && return
		sleep 0.02
	done
}
pid() { engine inspect --format '{{.State.Pid}}' $1; }
ip4() { engine inspect --format "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}" $1 | cut -d' ' -f${2:-1}; }
ip_on() { engine inspect --format "{{(index .NetworkSettings.Networks \"$1\").IPAddress}}" $2; } # NETWORK CONTAINER
gateway_of() { cleat net inspect $1 --json | sed -n 's/.*"gateway": *"\([^"]*\)".*/\1/p' | head -1; }

story_create() {
	network -o cleat.network=web one
	is "web      bridge" cleat net ls
	network two
	is "docker-$(engine network inspect --format '{{.Id}}' two | cut -c1-12)" cleat net ls
	is '"10.' engine network inspect --format '{{json .IPAM.Config}}' two
	ok engine network rm two
	isnt docker- cleat net ls
	ok engine network rm one
	isnt web cleat net ls
}
story_run() {
	network -o cleat.network=web one
	run api one
	is "default via" net api ip route
	is "1 received" net api ping -c1 -W1 $(net api ip route | sed -n 's/default via \([^ ]*\).*/\1/p')
	soon "api        docker  eth0  $(ip4 api)" cleat net inspect web
	is "attached" cleat net ls web
	isnt gwbridge engine network ls
}
story_names() {
	network -o cleat.network=web one
	run api one --network-alias db
	run front one
	plain pl web
	is "$(ip4 front)" at api /box lookup front
	is 10. at api /box lookup pl
	is 10. at api /box lookup pl.web
	is "no such host" at api /box lookup nobody
	soon "$(ip4 api)" there pl box lookup api
	soon "$(ip4 api)" there pl box lookup db
	there pl box serve 90 &
	soon "$(ip4 api)" at api /box ask pl.web:90
	is "$(there pl ip route get $(ip4 api) | sed -n 's/.*src \([^ ]*\).*/\1/p')" there pl box ask db:80
	kill %% && wait %% 2>/dev/null
	unplain pl
}

story_publish() {
	network -o cleat.network=web one
	run api one -p 8080:80 -p 127.0.0.1:8081:81 -p 8082:81/udp
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	is "refused" outside_asks 198.51.100.1:8081
	is 10. box ask 127.0.0.1:8081
	for p in 8080:80 127.0.0.1:8081:81 8082:81/udp; do is $p cleat net ls web; done
}
story_publish_any() {
	network -o cleat.network=web one
	run api one -p 80
	port=$(cleat net ls web --json | grep -oE '"host_port":[0-9]+' | head -1 | cut -d: -f2)
	[ "$port" -ge 32768 ] || bad "chosen port $port"
	is 198.51.100.9 outside_asks 198.51.100.1:$port
	run all one -P --expose 80 --expose 81
	is :81 cleat net ls web
	run range one -p 8080-8090:80
	is 8080:80 cleat net ls web
	run range2 one -p 8080-8090:80
	is 8081:80 cleat net ls web
}
story_taken_port() {
	network -o cleat.network=web one
	run api one -p 8080:80
	soon "api " cleat net ls web
	is "tcp port 8080 of the host is in use by api on network web" engine run -d --name other --network one -p 8080:80 image /box serve 80
	isnt other cleat net ls web
	box serve 9090 &
	sleep 0.2
	is "port 9090 of the host is in use" engine run -d --name third --network one -p 9090:80 image /box serve 80
	kill %% && wait %% 2>/dev/null
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	ok engine rm -f other
	ok engine rm -f third
}
story_mistakes() {
	is "no such option" engine network create -d cleat -o cleat.netwrok=web one
	is "cleat.network" engine network create -d cleat -o cleat.netwrok=web one
	is "no such driver" engine network create -d cleat --ipam-driver cleat -o cleat.driver=brigde one
	is "is not valid" engine network create -d cleat -o cleat.mtu=large one
	is "198.51.100.0/24" engine network create -d cleat --ipam-driver cleat --subnet 198.51.100.0/24 one
	is "no such option" engine network create -d cleat --ipam-driver cleat --ipam-opt net=web one
	is "no matching subnet" engine network create -d cleat --ipam-driver cleat --subnet 10.9.0.0/24 --gateway 10.8.0.1 one
	isnt "1" ls $CLEAT_STATE_DIR/networks
	network -o cleat.network=web one
	is "in use" engine network create -d cleat --ipam-driver cleat --subnet $(engine network inspect --format '{{(index .IPAM.Config 0).Subnet}}' one) two
	is "no such option" engine run --rm --network name=one,driver-opt=cleat.speed=1 image /box lookup x
	is "docker" cleat net ls --json
	isnt "docker" cleat net ls web
}
story_addresses() {
	network -o cleat.network=web --subnet 10.30.0.0/24 --gateway 10.30.0.254 --ip-range 10.30.0.128/26 --aux-address printer=10.30.0.130 one
	run api one --ip 10.30.0.7 --mac-address 02:00:5e:10:00:07
	is 02:00:5e:10:00:07 net api ip link show eth0
	is "10.30.0.7/24" net api ip addr show eth0
	is "via 10.30.0.254" net api ip route
	is "address 10.30.0.7 of network web belongs to api" engine run -d --network one --ip 10.30.0.7 image /box serve 80
	plain pl web
	is "10.30.0.1" there pl ip -4 addr show eth0
	mine=$(there pl ip -4 -o addr show eth0 | sed 's|.*inet \([0-9.]*\)/.*|\1|')
	is "address $mine of network web belongs to pl" engine run -d --name late --network one --ip $mine image /box serve 80
	unplain pl
	run other one
	is 10.30.0.1 ip4 other
	isnt 10.30.0.130 ip4 other
}
story_ipv6() {
	network -o cleat.network=web --ipv6 --subnet fd00:77::/64 one
	run api one -p 8080:80
	is "fd00:77::" net api ip -6 addr show eth0
	is "1 received" net api ping -6 -c1 -W2 fd00:77::1
	run front one
	is "fd00:77::" at front /box lookup api
	is "fd00:77::" at front /box ask "[$(net api ip -6 -o addr show eth0 scope global | sed 's|.*inet6 \([0-9a-f:]*\)/.*|\1|')]:80"
	ok engine rm -f api front
	ok engine network rm one
	network -o cleat.network=auto --ipv6 two
	run api two
	is "inet6 fd" net api ip -6 addr show eth0
}
story_internal() {
	network -o cleat.network=web --internal one
	run api one
	plain pl web
	isnt default net api ip route
	isnt gwbridge engine network ls
	is 10. at api /box lookup pl
	soon "$(ip4 api)" there pl box lookup api
	isnt "1 received" net api ping -c1 -W1 198.51.100.9
	unplain pl
}
story_gateway_moves() {
	network -o cleat.network=a one
	network -o cleat.network=b two
	run api one -p 8080:80
	ok engine network connect two api
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	is "default via 10." net api ip route
	ok engine network disconnect one api
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	is 8080:80 cleat net ls b
	isnt api cleat net ls a
	ok engine network connect one api
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	soon "api" cleat net ls a
	ok engine network disconnect one api
	ok engine network disconnect two api
	isnt 8080 cleat net ls b
}
story_direct() {
	kill $daemon; wait $daemon
	start_dockerd --live-restore
	network -o cleat.network=a one
	network -o cleat.network=b -o cleat.direct=true two
	network -o cleat.network=c -o cleat.direct=true three
	ok engine network create four
	run front two # its first link is eth0 all the same
	is "$(ip4 front)" net front ip addr show eth0
	run api one -p 8080:80
	ok engine network connect two api
	soon "api " cleat net ls b
	is "$(ip_on two api)" net api ip addr show eth100
	is "$(ip4 front)" at front /box ask api:80
	ok engine network connect three api # after a direct one as ever
	is "$(ip_on three api)" net api ip addr show eth1
	ok engine network connect four api # dockerd takes the next name
	is "$(ip_on four api)" net api ip addr show eth2
	kill -9 $daemon; wait $daemon 2>/dev/null
	start_dockerd --live-restore
	is "$(ip4 front)" at front /box ask api:80
	ok engine network disconnect four api
	ok engine network disconnect three api
	ok engine network disconnect one api # and the default route is the direct link's
	soon "via $(gateway_of b)" net api ip route
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	is "$(ip4 front)" at front /box ask api:80
	ok engine network connect one api
	ok engine network disconnect two api
	isnt eth100 net api ip addr
	isnt api cleat net ls b
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	ok engine network connect two api # handed over: this daemon may not be told twice
	isnt eth100 net api ip addr
	ok engine restart -t 0 api
	soon "$(ip_on two api)" net api ip addr
	ok engine network connect three api # of a container that this daemon has started
	is "$(ip_on three api)" net api ip addr
	is eth100 net api ip addr
	kill -9 $daemon; wait $daemon 2>/dev/null
	start_dockerd --live-restore
	ok engine restart -t 0 api
	soon "$(ip_on three api)" net api ip addr
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	ok engine stop -t 0 api
	isnt api cleat net ls b
	ok engine rm -f api front
	ok engine network rm four
	is "as they should be" cleat net check
	kill $daemon; wait $daemon
	start_dockerd
}
story_restart() {
	network -o cleat.network=web one
	run api one -p 8080:80
	ok engine restart -t 0 api
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	soon "api " cleat net ls web
	[ $(cleat net ls web | grep -c docker) = 1 ] || bad "endpoints: $(cleat net ls web)"
	ok engine stop -t 0 api
	isnt api cleat net ls web
	ok cleat net check
	ok engine start api
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	ok engine rename api renamed
	kill -9 $(pid renamed)
	gone_soon docker cleat net ls web
}
story_killed_keeper() {
	network -o cleat.network=web one
	run api one -p 8080:80
	kill_keeper
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	within 4000 engine run -d --name late --network one image /box serve 80
	soon "late " cleat net ls web
	is "$(ip4 api)" at api /box ask late:80
	kill_keeper
	within 4000 engine stop -t 0 late
	isnt "late " cleat net ls web
	kill_keeper
	within 4000 engine network create -d cleat --ipam-driver cleat two
	ok engine network rm two
}
story_killed_daemon() {
	network -o cleat.network=web one
	run api one -p 8080:80 --restart always
	run once one
	soon "once " cleat net ls web
	kill -9 $daemon; wait $daemon 2>/dev/null
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	start_dockerd
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	gone_soon "once " cleat net ls web
	[ $(cleat net ls web | grep -c docker) = 1 ] || bad "endpoints: $(cleat net ls web)"
	ok engine start once
	soon "once " cleat net ls web
	is "$(ip4 once)" at once /box ask api:80 || true
	ok engine rm -f once api
	is "CONTAINER" cleat net ls web
	isnt docker cleat net ls web
}
story_live_restore() {
	kill $daemon; wait $daemon
	start_dockerd --live-restore
	network -o cleat.network=web one
	run api one -p 8080:80
	soon "api " cleat net ls web
	kill -9 $daemon; wait $daemon 2>/dev/null
	start_dockerd --live-restore
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	run front one
	is "$(ip4 front)" at front /box ask api:80
	ok engine stop -t 0 api
	isnt "api " cleat net ls web
	is refused outside_asks 198.51.100.1:8080
	ok engine start api
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	stop_all
	kill $daemon; wait $daemon
	start_dockerd
}
story_network_rm() {
	network -o cleat.network=web one
	run api one
	is "has active endpoints" engine network rm one
	soon "api " cleat net ls web
	ok engine rm -f api
	plain pl web
	ok engine network rm one
	is web cleat net ls
	is "pl " cleat net ls web
	unplain pl
	ok cleat net rm web
}
story_shared() {
	ok cleat net create shop --subnet 10.40.0.0/24
	network --ipam-opt cleat.network=shop one
	is 10.40.0.1 engine network inspect one
	run api one -p 8080:80
	plain pl shop
	is "$(there pl ip -4 -o addr show eth0 | sed 's|.*inet \([0-9.]*\)/.*|\1|')" at api /box lookup pl
	soon netns cleat net ls shop
	soon "api        docker" cleat net ls shop
	is "exists, and Docker can't change it" engine network create -d cleat --ipam-driver cleat --ipam-opt cleat.network=shop -o cleat.mtu=1400 two
	is "is none of network shop" engine network create -d cleat -o cleat.network=shop two
	is "--ipam-opt cleat.network=shop" engine network create -d cleat -o cleat.network=shop two
	ok engine rm -f api
	ok engine network rm one
	is shop cleat net ls
	unplain pl
}
story_policy() {
	network -o cleat.network=web one
	run api one
	run front one
	soon "api " cleat net ls web
	soon "front " cleat net ls web
	is 10. at front /box ask api:80
	ok cleat net deny web/front to web/api:80
	is "i/o timeout" at front /box ask api:80
	is 10. at front /box ask api:81
	is "deny" cleat net why front api:80
	ok engine restart -t 0 front
	soon "i/o timeout" at front /box ask api:80
}
story_prune() {
	network -o cleat.network=web one
	run api one
	soon "api " cleat net ls web
	ok cleat net prune
	is "api " cleat net ls web
	ok cleat net rm --force web
	is "there is no network" engine run -d --name late --network one image /box serve 80
	ok engine rm -f api
	ok engine network rm one
}
story_default_ipam() {
	ok engine network create -d cleat -o cleat.network=web one
	run api one
	is 172. ip4 api
	is 172. cleat net ls
	is "1 received" net api ping -c1 -W1 $(net api ip route | sed -n 's/default via \([^ ]*\).*/\1/p')
	is "needs addresses of our IPAM driver" engine network create -d cleat -o cleat.driver=routed two
	ok engine network create -d cleat --ipam-driver null -o cleat.network=own three
	run own three
	is "10." net own ip -4 addr show eth0
}
story_routed() {
	network -o cleat.network=web -o cleat.driver=routed --ipv6 --subnet fd00:78::/64 one
	run api one -p 8080:80
	run front one
	is "/32" net api ip -4 addr show eth0
	is 10. at front /box ask "$(ip4 api):80"
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	is "1 received" net front ping -6 -c1 -W2 fd00:78::1
	is "attached" cleat net ls web
}
story_macvlan() {
	ip link add probe link nic type macvlan 2>/dev/null || { echo "$name: skipped"; return; }
	ip link del probe
	ok engine network create -d cleat --ipam-driver cleat -o cleat.network=lan -o cleat.driver=macvlan -o cleat.parent=nic --subnet 198.51.100.0/24 --gateway 198.51.100.9 --ip-range 198.51.100.64/28 one
	run api one
	is 198.51.100.6 net api ip -4 addr show eth0
	soon 198.51.100.9 outside_asks "$(ip4 api):80"
	soon attached cleat net ls lan
	is "reached at their own addresses" engine run -d --name two --network one -p 8080:80 image /box serve 80
	kill -9 $(pid api)
	gone_soon "api " cleat net ls lan
}
story_rate() {
	network -o cleat.network=web one
	ok engine run -d --name api --network name=one,driver-opt=cleat.rate=10M,driver-opt=cleat.aliases=slow image /box serve 80
	is "rate 10Mbit" tc qdisc
	soon slow cleat net ls web
	ok engine rm -f api
	isnt "rate 10Mbit" tc qdisc
}
story_upgrade() {
	network -o cleat.network=web one
	run api one -p 8080:80
	before=$(cat keeper.pid)
	cp "$(command -v cleat)" /dev/shm/bin/next && mv /dev/shm/bin/next "$(command -v cleat)"
	soon "the new version goes on" cat keep.log
	within 4000 engine run -d --name late --network one image /box serve 80
	is "$(ip4 late)" at late /box ask late:80
	[ $before = $(cat keeper.pid) ] || bad "the keeper did not go on in its process"
	soon "late " cleat net ls web
}
story_compose() {
	command -v docker-compose >/dev/null || { echo "$name: skipped"; return; }
	mkdir -p /dev/shm/compose
	cat >/dev/shm/compose/docker-compose.yml <<-END
		version: "3"
		services:
		  db: {image: image, command: [/box, serve, "80"]}
		  front: {image: image, command: [/box, serve, "80"], ports: ["8080:80"], depends_on: [db]}
		networks:
		  default:
		    driver: cleat
		    driver_opts: {cleat.network: web}
		    ipam: {driver: cleat}
	END
	ok docker-compose --project-directory /dev/shm/compose -f /dev/shm/compose/docker-compose.yml -p shop up -d
	front=$(engine ps -q --filter publish=8080 --filter name=front | head -1)
	front=${front:-$(engine ps -q --filter name=front)}
	is 10. at $front /box ask db:80
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	soon ",db" cleat net ls web
	plain pl web
	soon 10. there pl box lookup db
	unplain pl
	ok docker-compose --project-directory /dev/shm/compose -f /dev/shm/compose/docker-compose.yml -p shop down
	isnt web cleat net ls
}
story_loopback_resolver() {
	echo 'nameserver 127.0.0.1' >/etc/resolv.conf
	network -o cleat.network=web one
	run api one
	plain pl web
	soon 10. at api /box lookup pl
	unplain pl
	cp /dev/shm/resolv.conf /etc/resolv.conf
}
story_several_networks() {
	network -o cleat.network=a one
	network -o cleat.network=b two
	run api one
	ok engine network connect two api
	plain pa a
	plain pb b
	soon 10. at api /box lookup pa
	soon 10. at api /box lookup pb
	run front two
	is "$(ip4 front)" at api /box lookup front
	ok engine network disconnect two api
	soon 10. at api /box lookup pa
	is "no such host" at api /box lookup pb
	isnt 127.0.0.64 at api /box cat /etc/resolv.conf
	unplain pa
	unplain pb
}
# cni COMMAND calls the CNI plug-in for the namespace pod.
cni() {
	echo '{"cniVersion": "1.0.0", "name": "web", "type": "cleat-cni"}' |
		CNI_COMMAND=$1 CNI_CONTAINERID=pod1 CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0 CNI_PATH=/dev/shm/bin cleat cleat-cni
}
inspected() { cleat net inspect $1 | tr -s ' '; }
story_engines() {
	network -o cleat.network=web one
	run api one -p 8080:80
	plain pl web
	ip netns add pod
	ok cni ADD
	soon "api " cleat net ls web
	is 10. at api /box lookup pod1
	is 10. at api /box lookup pl
	is "$(ip4 api)" there pl box lookup api
	is 10. there pl box lookup pod1
	is 10. there pod box ask $(ip4 api):80
	for what in "api docker" "pl netns" "pod1 cni"; do is "$what" inspected web; done
	ok cleat net deny web/pod1 to web/api
	is timeout there pod box ask $(ip4 api):80
	ok engine rm -f api
	isnt docker cleat net ls web
	is cni cleat net ls web
	ok engine network rm one
	ok cni DEL
	ip netns del pod
	unplain pl
	ok cleat net rm web
	isnt web cleat net ls
}
story_dead_keeper() {
	network -o cleat.network=web one
	run api one --restart always -p 8080:80
	kill $holder; wait $holder 2>/dev/null
	cleat keep --docker-socket $plugin >>keep.log 2>&1 &
	alone=$!
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	soon "a keeper runs" cleat keep --status
	test -S $plugin || bad "no socket"
	kill -9 $alone; wait $alone 2>/dev/null
	test -S $plugin || bad "a killed keeper removed its socket"
	cleat keep --docker-socket $plugin >>keep.log 2>&1 &
	alone=$!
	soon "a keeper runs" cleat keep --status
	within 4000 engine restart -t 0 api
	soon 198.51.100.9 outside_asks 198.51.100.1:8080
	kill $alone; wait $alone
	test -e $plugin && bad "a stopped keeper left its socket"
	rm -f keeper.pid
	start_keeper
}
story_swarm() {
	is '"NetworkDriver"' curl -s --unix-socket $plugin -X POST http://x/Plugin.Activate
	is 404 curl -s -o /dev/null -w '%{http_code}' --unix-socket $plugin -X POST http://x/NetworkDriver.NoSuchMethod
	is 400 curl -s -o /dev/null -w '%{http_code}' --unix-socket $plugin -X POST -d '{' http://x/NetworkDriver.Join
	is "can't allocate" curl -s --unix-socket $plugin -X POST -d '{}' http://x/NetworkDriver.AllocateNetwork
}

echo '{}' >daemon.json
start_keeper
start_dockerd
tar -C $rootfs -c . | docker --config /dev/shm import - image >/dev/null
for s in create run names publish publish_any taken_port mistakes addresses ipv6 internal gateway_moves restart killed_keeper \
	killed_daemon live_restore direct network_rm shared policy prune default_ipam routed macvlan rate compose loopback_resolver several_networks engines dead_keeper swarm upgrade; do
	story $s
done
nothing_is_left $CLEAT_STATE_DIR
kill $daemon; wait $daemon
kill $holder; wait $holder 2>/dev/null
test -e $plugin && echo "nothing_left: $plugin is left"
sed 's/^/keeper: /' keep.log
[ -z "${DOCKERLOG:-}" ] || grep -v level=info dockerd.log | sed 's/^/dockerd: /' | cut -c1-400
