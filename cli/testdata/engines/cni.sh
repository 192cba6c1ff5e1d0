# containerd connects containers to a network by CNI, as doc/plugins.md says.
. "${1%/*}/pages.sh"
. "${1%/*}/with_containerd.sh"
start_containerd "$without_cri"
engine() { ctr --namespace $group "$@"; }
block plugins.md 'cni-conf web >' >/dev/shm/block.sh
sh -eu /dev/shm/block.sh 2>&1 | say page

engine run --detach --cni --rootfs $rootfs web $serve 2>&1 | say run
engine run --detach --cni --rootfs $rootfs front $serve 2>&1 | say run
told connected net ls web
ip netns add plain
told plain net connect web plain
address=$(cleat net ls web | awk '/\/web / { print $4 }')
reach ip netns exec plain cleat traffic rr $address:5210 | say "namespace to container"
cleat net deny web/plain to web >/dev/null
reach ip netns exec plain cleat traffic rr $address:5210 | say "namespace to container, denied"
cleat net allow web/plain to web >/dev/null

# containerd is killed: its containers keep their network, and it finds them again
kill -9 $containerd; wait $containerd 2>/dev/null
reach ip netns exec plain cleat traffic rr $address:5210 | say "without containerd"
start_containerd
stop() { engine tasks kill --signal SIGKILL $1; until engine tasks delete --force $1 >/dev/null 2>&1 || test -z "$(engine tasks ls --quiet | grep -x $1)"; do sleep 0.05; done; }
stop web; stop front
engine containers delete web front
# ctr disconnects only containers that it ran in the foreground
for i in $(seq 100); do cleat net ls web | grep -q $group || break; sleep 0.2; done
told forgotten net ls web
told gone net disconnect web plain
told gone net rm web
echo "left: $(ip -o link | grep -c cl-) devices"
kill $containerd
wait $containerd
