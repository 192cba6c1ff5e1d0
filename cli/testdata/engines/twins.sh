# A name that containers of two engines have.
engine() { podman --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --log-level error "$@"; }
engine run --detach --name shop --network none --cgroup-parent /$group --rootfs $rootfs $serve >/dev/null
mkdir -p /var/lib/lxc/shop
cat >/var/lib/lxc/shop/config <<CONFIG
lxc.rootfs.path = dir:$rootfs
lxc.uts.name = shop
lxc.net.0.type = empty
lxc.init.cmd = $serve
lxc.autodev = 0
lxc.mount.auto = proc:mixed
CONFIG
lxc-start --name shop --daemon
before_host
told both attach shop bridge br0 --ip 192.0.2.10/24
told podman attach podman:shop bridge br0 --ip 192.0.2.10/24 --masquerade
told lxc attach lxc:shop bridge br0 --ip 192.0.2.11/24 --masquerade
told graph graph shop
told "graph of one" graph lxc:shop
told ls ls
reach cleat traffic rr 192.0.2.10:5210 | say "host to podman"
reach cleat traffic rr 192.0.2.11:5210 | say "host to lxc"
told "detach both" detach shop eth0
told "inspect both" inspect shop
told inspect inspect lxc:shop
told detach detach podman:shop
told detach detach lxc:shop eth0
after_host detached
engine rm --force --time 0 shop >/dev/null
lxc-stop --kill --name shop
