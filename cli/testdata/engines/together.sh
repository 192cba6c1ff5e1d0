# One network with containers of Docker, Podman and containerd, and a plain namespace, as doc/plugins.md
# has it.
. "${1%/*}/pages.sh"
. "${1%/*}/with_containerd.sh"
mkdir -p /run/docker/plugins /etc/cni/net.d /opt/cni/bin /dev/shm/helpers /etc/containers/networks
cd /dev/shm
unset CLEAT_STATE_DIR # Podman's cleanup has no environment
page_line plugins.md 'net create' >/dev/null
until test -S /run/docker/plugins/cleat.sock; do sleep 0.02; done

# Docker
echo '{}' >daemon.json
dockerd --config-file daemon.json --host unix:///var/run/docker.sock --pidfile /dev/shm/dockerd.pid --data-root /dev/shm/docker \
	--exec-root /run/docker --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
	--exec-opt native.cgroupdriver=cgroupfs --cgroup-parent /$group >dockerd.log 2>&1 &
dockerd=$!
docker() { command docker --config /dev/shm "$@"; }
until docker version >/dev/null 2>&1; do kill -0 $dockerd || { cat dockerd.log; exit 1; }; sleep 0.05; done
tar -C $rootfs -c . | docker import - image >/dev/null
page_line plugins.md 'docker network create' 2>&1 | sed 's/^[0-9a-f]*$/created/' | say docker
docker run --detach --name d1 --network web image $serve >/dev/null

# Podman, whose netavark is cleat
ln -s $(command -v cleat-cni) helpers/netavark
printf '[engine]\nhelper_binaries_dir = ["/dev/shm/helpers", "/usr/lib/podman", "/usr/libexec/podman"]\n[network]\nnetwork_backend = "netavark"\n' >/etc/containers/containers.conf
podman() { command podman --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --log-level error "$@"; }
page_line plugins.md podman-conf >/dev/null
podman run --detach --name p1 --network web --cgroup-parent /$group --rootfs $rootfs $serve 2>&1 | sed 's/^[0-9a-f]*$/started/' | say podman

# containerd
ctr() { command ctr --address /run/containerd/other.sock --namespace $group "$@"; }
start_containerd "$beside_docker"
page_line plugins.md cni-conf >/dev/null
cp "$(command -v cleat-cni)" /opt/cni/bin/
echo nameserver 192.0.2.1 >/dev/shm/c1.conf # a file for the container alone, as nerdctl makes it
ctr run --detach --cni --mount type=bind,src=/dev/shm/c1.conf,dst=/etc/resolv.conf,options=rbind:rw --rootfs $rootfs c1 $serve >/dev/null 2>&1

# a process in a plain namespace
ip netns add n1
ip netns exec n1 cleat traffic serve --listen :5210 >/dev/null &
served=$!
cleat net connect web n1 >/dev/null
told all net inspect web

# in CONTAINER ARGUMENTS… runs cleat in a container
in_() {
	local name=$1; shift
	case $name in
	d1) docker exec d1 /cleat "$@" ;;
	p1) podman exec p1 /cleat "$@" ;;
	c1) ctr tasks exec --exec-id e$RANDOM c1 /cleat "$@" ;;
	n1) ip netns exec n1 cleat "$@" ;;
	esac
}
# pairs says who reaches whom by name.
pairs() {
	local from to
	for from in d1 p1 c1 n1; do
		for to in d1 p1 c1 n1; do
			test $from = $to || { in_ $from traffic rr $to:5210 --duration 20ms >/dev/null 2>&1 && echo "$from $to" || echo "$from not $to"; }
		done
	done | say "$1"
}
pairs before
cleat net deny web/d1 to web/p1 >/dev/null
cleat net deny web/n1 to web:5210 >/dev/null
pairs denied
told why net why d1 p1:5210
told why net why c1 p1:5210
cleat graph 2>&1 | grep -A5 "^network web" | say graph

# each engine removes its own
docker rm --force d1 >/dev/null
told "without docker" net ls web
podman rm --force --time 0 p1 >/dev/null
told "without podman" net ls web
ctr tasks kill --signal SIGKILL c1; until ctr tasks delete --force c1 >/dev/null 2>&1; do sleep 0.05; done
ctr containers delete c1
for i in $(seq 100); do cleat net ls web | grep -q /c1 || break; sleep 0.1; done
kill $served; ip netns del n1
docker network rm web | say docker
cleat net prune | say prune
told "without all" net ls web
told rm net rm web
kill $dockerd $containerd
wait $dockerd $containerd
echo "left: $(ip -o link | grep -c 'cl-\|veth\|clh') devices, $(ip netns | wc -l) namespaces, $(ls /var/lib/cleat/networks /var/lib/cleat/attachments | grep -c json) files"
