# Root's Podman.
engine() { podman --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --log-level error "$@"; }
name=shop
engine create --name $name --network none --cgroup-parent /$group --rootfs $rootfs $serve >/dev/null
ref=$(engine inspect --format '{{.ID}}' $name | cut -c1-12)
start() { engine start $name >/dev/null; }
stop() { engine stop --time 0 $name >/dev/null; }
pid_of() { engine inspect --format '{{.State.Pid}}' $name; }
all
engine rm --force --time 0 $name >/dev/null
