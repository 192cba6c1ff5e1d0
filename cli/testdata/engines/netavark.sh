# Podman with cleat in the place of netavark. cleat-cni, as netavark, is what Podman starts.
helpers=/dev/shm/helpers
mkdir -p $helpers
ln -s "$(command -v cleat-cni)" $helpers/netavark
cat >/dev/shm/containers.conf <<CONF
[network]
network_backend = "netavark"
[engine]
helper_binaries_dir = ["$helpers"]
CONF
export CONTAINERS_CONF=/dev/shm/containers.conf
unset CLEAT_STATE_DIR
mkdir -p /var/lib/cleat
engine() { podman --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --log-level error "$@"; }
runs() { # NAME OPTIONS…
	local name=$1; shift
	engine run --detach --name $name --cgroup-parent /$group "$@" --rootfs $rootfs $serve >/dev/null && echo "run: $name"
}
state() { ip -brief link | cut -d' ' -f1; nft list ruleset; find /var/lib/cleat/networks /var/lib/cleat/attachments /var/lib/cleat/ports -type f 2>/dev/null; }
settled() { for i in $(seq 100); do state >/dev/shm/now; cmp -s /dev/shm/first /dev/shm/now && echo "everything as before" && return; sleep 0.1; done; diff /dev/shm/first /dev/shm/now; }

state >/dev/shm/first
engine network create --subnet 10.89.7.0/24 shop >/dev/null
runs api --network shop --network-alias db
runs front --network shop --publish 8080:5210
runs alone # Podman's default network, without names
told ls net ls shop
told name net why podman:front db:5210
inside() { pid=$(engine inspect --format '{{.State.Pid}}' $1); shift; nsenter --target $pid --net "$@"; }
inside front cat /proc/$(engine inspect --format '{{.State.Pid}}' front)/root/etc/resolv.conf | grep -E "search|nameserver 10" | say resolv.conf
reach inside front cleat traffic rr 10.89.7.2:5210 | say "to another container"
reach inside alone cleat traffic rr 10.89.7.2:5210 | say "to another network"
reach cleat traffic rr 127.0.0.1:8080 | say "published, from the host"
reach $outside cleat traffic rr 198.51.100.1:8080 | say "published, from outside"

# a namespace is on Podman's network as well
ip netns add guest
told guest net connect shop netns:guest --ip 10.89.7.200
reach ip netns exec guest cleat traffic rr 10.89.7.2:5210 | say "from a namespace"
told deny net deny shop/guest to shop/api
reach ip netns exec guest cleat traffic rr 10.89.7.2:5210 | say "from a namespace that is denied"
told disconnect net disconnect shop netns:guest

engine network connect podman front && inside front ip -brief address show eth1 | grep -c 10.88. | say connect
engine network disconnect shop front && reach cleat traffic rr 127.0.0.1:8080 | say "published, on the other network"
engine network reload api >/dev/null && reach inside front true >/dev/null; cleat net ls shop | grep -c api | say reload
engine rm --force --time 0 api front alone >/dev/null
engine network rm shop >/dev/null
ip netns del guest
settled | say left
