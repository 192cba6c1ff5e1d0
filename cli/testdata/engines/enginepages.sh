# The blocks of the engines' pages, as somebody types them: doc/docker.md, doc/plugins.md and doc/dropin.md.
# Each line that fails is told, with its output.
. "${1%/*}/pages.sh"
. "${1%/*}/with_containerd.sh"
cd /dev/shm
unset CLEAT_STATE_DIR # Podman's cleanup has no environment
mkdir -p /run/docker/plugins /etc/cni/net.d /opt/cni/bin /opt/share/cleat /etc/containers
command cleat net cni-conf cleat --create >/opt/share/cleat/10-cleat.conflist # as make install does
# systemd would do that
cleat() {
	test "$1 ${2:-}" = "keep --install" || { command cleat "$@"; return; }
	command cleat keep --docker-socket /run/docker/plugins/cleat.sock >keep.log 2>&1 &
	until test -S /run/docker/plugins/cleat.sock; do sleep 0.02; done
}
echo '{}' >daemon.json
dockerd --config-file daemon.json --host unix:///var/run/docker.sock --pidfile /dev/shm/dockerd.pid --data-root /dev/shm/docker \
	--exec-root /run/docker --bridge none --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent /$group >dockerd.log 2>&1 &
dockerd=$!
docker() { command docker --config /dev/shm "$@"; }
until docker version >/dev/null 2>&1; do kill -0 $dockerd || { cat dockerd.log; exit 1; }; sleep 0.05; done
tar -C $rootfs -cf image.tar .
serving='["/cleat", "traffic", "serve", "--listen", ":80"]'
docker import --change "CMD $serving" image.tar nginx >/dev/null
printf '[engine]\nevents_logger = "none"\ncgroup_manager = "cgroupfs"\n' >/etc/containers/containers.conf
podman() {
	local verb=$1 more=
	shift
	test $verb != run || more="--cgroup-parent /$group"
	command podman --storage-driver vfs --log-level error $verb $more "$@"
}
podman import --change "CMD $serving" image.tar docker.io/library/nginx >/dev/null 2>&1
podman run --detach --name front --network none docker.io/library/nginx >/dev/null

typed docker.md "cleat keep --install"
cleat net ls web | say docker.md
reach cleat traffic rr 198.51.100.1:8080 | say "docker.md published"
cleat net disconnect web podman:front
docker rm --force api >/dev/null
docker network rm web >/dev/null
if command -v docker-compose >/dev/null; then
	mkdir compose
	{ printf 'version: "3"\nservices:\n  db: {image: nginx}\n'; block docker.md "driver: cleat" yaml; } >compose/docker-compose.yml
	(cd compose && docker-compose up -d >compose.log 2>&1 || say compose <compose.log; cleat net ls web | grep -o compose.db.1; docker-compose down -t 0 >/dev/null 2>&1) | say compose
else
	echo "compose: skipped"
fi

ctr() { command ctr --address /run/containerd/other.sock --namespace $group "$@"; }
start_containerd "$beside_docker"
runs() { # NAME: on the first network in /etc/cni/net.d
	ctr run --detach --cni --rootfs $rootfs $1 $serve >/dev/null 2>&1
	cleat net ls $2 | grep -c "$1 .*attached" | say "containerd on $2"
	ctr tasks kill --signal SIGKILL $1
	until ctr tasks delete --force $1 >/dev/null 2>&1; do sleep 0.05; done
	ctr containers delete $1
}
typed plugins.md "cleat net cni-conf web > /etc/cni/net.d/50-web.conflist"
runs c1 web
typed plugins.md "10-cleat.conflist"
runs c2 cleat
cleat net prune >/dev/null
cleat net rm web >/dev/null

typed dropin.md "cleat.conf <<'CONF'"
cleat net ls shop | say dropin.md
podman rm --force --time 0 api front >/dev/null
podman network rm shop >/dev/null
kill $dockerd $containerd
wait $dockerd $containerd
