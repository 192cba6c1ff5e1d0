# LXC, without a daemon.
name=shop ref=lxc:shop
mkdir -p /var/lib/lxc/$name
cat >/var/lib/lxc/$name/config <<CONFIG
lxc.rootfs.path = dir:$rootfs
lxc.uts.name = $name
lxc.net.0.type = empty
lxc.init.cmd = $serve
lxc.autodev = 0
lxc.mount.auto = proc:mixed
CONFIG
start() { lxc-start --name $name --daemon; }
stop() { lxc-stop --kill --name $name; }
pid_of() { lxc-info --name $name --pid --no-humanize; }
all
