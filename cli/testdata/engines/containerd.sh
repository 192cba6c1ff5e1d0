# containerd by ctr, in a namespace of its own.
name=containerd:$group/shop
ref=shop
cat >/dev/shm/containerd.toml <<CONFIG
version = 2
root = "/dev/shm/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
CONFIG
containerd --config /dev/shm/containerd.toml >/dev/shm/containerd.log 2>&1 &
daemon=$!
engine() { ctr --namespace $group "$@"; }
until ctr version >/dev/null 2>&1; do kill -0 $daemon || { cat /dev/shm/containerd.log; exit 1; }; sleep 0.05; done
engine containers create --rootfs $rootfs shop $serve
start() { engine tasks start --detach shop; }
stop() {
	engine tasks kill --signal SIGKILL shop
	until engine tasks delete --force shop >/dev/null 2>&1 || test -z "$(engine tasks ls --quiet)"; do sleep 0.05; done
}
pid_of() { engine tasks ls | awk '$1 == "shop" { print $2 }'; }
all
engine containers delete shop
kill $daemon
wait $daemon
