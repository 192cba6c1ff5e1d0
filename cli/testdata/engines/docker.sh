# Docker, with a daemon that makes no networks.
name=shop
cd /dev/shm
echo '{}' >daemon.json
dockerd --config-file daemon.json --host unix:///run/docker.sock --pidfile /dev/shm/dockerd.pid --data-root /dev/shm/docker \
	--exec-root /run/docker --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
	--exec-opt native.cgroupdriver=cgroupfs --cgroup-parent /$group >dockerd.log 2>&1 &
daemon=$!
engine() { docker --config /dev/shm "$@"; }
until engine version >/dev/null 2>&1; do kill -0 $daemon || { cat dockerd.log; exit 1; }; sleep 0.05; done
tar -C $rootfs -c . | engine import - image >/dev/null
engine create --name $name --network none image $serve >/dev/null
ref=$(engine inspect --format '{{.ID}}' $name | cut -c1-12)
start() { engine start $name >/dev/null; }
stop() { engine stop --time 0 $name >/dev/null; }
pid_of() { engine inspect --format '{{.State.Pid}}' $name; }
all
engine rm --force $name >/dev/null
kill $daemon
wait $daemon
