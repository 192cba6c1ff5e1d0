# Podman of an ordinary user, with cleat in the places of netavark and slirp4netns.
home=/dev/shm/tom
mkdir -p $home/helpers $home/.config/containers /run/user/1234 /dev/shm/net
mknod -m 666 /dev/shm/net/tun c 10 200
mount --bind /dev/shm/net/tun /dev/net/tun
chmod 1777 /dev/shm
ip route add default via 198.51.100.9
echo tom:x:1234:1234::$home:/bin/bash >>/etc/passwd
echo tom:x:1234: >>/etc/group
echo tom:200000:65536 | tee -a /etc/subuid >>/etc/subgid
ln -s "$(command -v cleat-cni)" $home/helpers/netavark
ln -s "$(command -v cleat)" $home/helpers/slirp4netns
cp -r $rootfs $home/root
cat >$home/.config/containers/containers.conf <<CONF
[network]
network_backend = "netavark"
[engine]
helper_binaries_dir = ["$home/helpers", "/usr/lib/podman", "/usr/libexec/podman"]
network_cmd_path = "$home/helpers/slirp4netns"
cgroup_manager = "cgroupfs"
events_logger = "none"
CONF
chown -R 1234:1234 $home /run/user/1234
unset CLEAT_STATE_DIR
as_user() { (cd $home && setpriv --reuid 1234 --regid 1234 --clear-groups env HOME=$home USER=tom XDG_RUNTIME_DIR=/run/user/1234 "$@"); }
engine() { as_user podman --storage-driver vfs --log-level error "$@"; }
runs() { # NAME OPTIONS…
	local name=$1; shift
	engine run --detach --name $name --cgroups disabled "$@" --rootfs $home/root $serve >/dev/null && echo "run: $name"
}
inside() { # NAME COMMAND…
	local of=$1; shift
	engine exec $of "$@"
}
processes() { ps -eo user,args | grep -E "^(tom|1234) " | grep -v podman; }

engine network create --subnet 10.89.7.0/24 shop >/dev/null
runs api --network shop --network-alias db
runs front --network shop --publish 8080:5210
runs alone --network podman
awk '/^```sh$/ { on = 1; text = ""; next } /^```$/ { if (on && index(text, "rootless-netns")) printf "%s", text; on = 0 } on { text = text $0 "\n" }' ../doc/dropin.md >$home/block
test -s $home/block || echo "ls: there is no block"
as_user env PATH="$PATH" bash -c "podman() { command podman --storage-driver vfs --log-level error \"\$@\"; }; . $home/block" 2>&1 | say ls
reach inside front /cleat traffic rr db:5210 | say "to another container, by name"
reach inside alone /cleat traffic rr 10.89.7.2:5210 | say "to another network"
reach cleat traffic rr 127.0.0.1:8080 | say "published, from the host"
reach $outside cleat traffic rr 198.51.100.1:8080 | say "published, from outside"
$outside cleat traffic serve --listen :5210 & server=$!
until cleat traffic rr 198.51.100.9:5210 --duration 1ms >/dev/null 2>&1; do sleep 0.02; done
reach inside front /cleat traffic rr 198.51.100.9:5210 | say "to outside"
kill $server
engine network connect podman front && inside front /cleat traffic rr 10.88.0.2:5210 --duration 1ms >/dev/null && echo "connected: reached"
engine rm --force --time 0 api front alone >/dev/null
engine network rm shop >/dev/null
for try in $(seq 100); do
	left=$(processes)
	test -n "$left" || break
	sleep 0.1
done
test -z "$left" || echo "$left" | say "processes left"
find /run/user/1234/containers/networks/cleat -type f -not -name "*.lock" -not -name keeper.log 2>/dev/null | say "files left"
