# Installs, uses, removes and purges /mnt/cleat.deb in a Debian with the essential packages only.
# Run by TestInstall as root of a chroot, in namespaces of its own.
set -eu
exec 2>&1

status() { dpkg-query --show --showformat '${db:Status-Eflag} ${db:Status-Status}\n' cleat 2>/dev/null || echo not installed; }
device() { grep -q "^ *$1:" /proc/net/dev; }
connected() { device cl-web && nsenter --target $container --net grep -q eth0: /proc/net/dev; }
processes() { grep -lz '[c]leat' /proc/[0-9]*/cmdline; }
nobody() { eventually eval '! processes' && echo "$1: no process"; }
gone() { ! grep '^ *\(cl\|veth\)' /proc/net/dev && echo "$1: no device"; }
keeper() { cleat keep --status 2>/dev/null | sed -n "s/^a keeper runs.*/$1: a keeper runs/p"; }
eventually() { for i in $(seq 200); do "$@" && return; sleep 0.05; done; echo "not so: $*"; exit 1; }

dpkg --install /mnt/cleat.deb
echo "install: $(status)"
test -L /etc/systemd/system/multi-user.target.wants/cleat-keep.service && echo "install: the unit is enabled"
nobody install
cleat --version | sed 's/^/install: /'

unshare --net sleep 1000 &
container=$!
apart() { test "$(readlink /proc/$container/ns/net)" != "$(readlink /proc/self/ns/net)"; }
eventually apart
cleat net create web --subnet 10.20.0.0/24
cleat net connect web $container --no-dns -p 8080:80
cleat net ls web
connected && echo "use: connected"
keeper use
echo '{"cniVersion": "1.1.0"}' | CNI_COMMAND=VERSION /usr/lib/cni/cleat-cni | tr -d ' \n' | sed 's/^/use: /'
echo

dpkg --install /mnt/cleat.deb
echo "upgrade: $(status)"
connected && echo "upgrade: still connected"
keeper upgrade

dpkg --remove cleat
echo "remove: $(status)"
gone remove
nobody remove
test -e /var/lib/cleat/networks/web/network.json && echo "remove: the network is still wanted"

dpkg --install /mnt/cleat.deb
echo "install again: $(status)"
cleat keep 2>/dev/null &
eventually device cl-web
echo "install again: the network is back"

dpkg --purge cleat
echo "purge: $(status)"
gone purge
nobody purge
