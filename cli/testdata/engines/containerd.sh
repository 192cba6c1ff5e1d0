# containerd by ctr, in a namespace of its own.
name=containerd:$group/shop
ref=shop
. "${1%/*}/with_containerd.sh"
start_containerd "$without_cri"
engine() { ctr --namespace $group "$@"; }
engine containers create --rootfs $rootfs shop $serve
start() { engine tasks start --detach shop; }
stop() {
	engine tasks kill --signal SIGKILL shop
	until engine tasks delete --force shop >/dev/null 2>&1 || test -z "$(engine tasks ls --quiet)"; do sleep 0.05; done
}
pid_of() { engine tasks ls | awk '$1 == "shop" { print $2 }'; }
all
engine containers delete shop
kill $containerd
wait $containerd
