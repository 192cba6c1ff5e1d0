# Installs, removes and purges the Debian package under systemd: run by host.sh. The machine's /usr
# is below an overlay.

eventually() { for i in $(seq 500); do "$@" && return; sleep 0.02; done; echo "not so: $*"; false; }
property() { systemctl show --property=$1 --value cleat-keep; }
is() { test "$(property $1)" = "$2"; }
device() { test -e /sys/class/net/cl-web; }
keeper() { cleat keep --status | sed -n 's/^a keeper runs, process //p'; }
nothing() { ! ls /sys/class/net | grep '^cl' && ! pgrep -a cleat; }
package() { dpkg --force-depends "$@" >/tmp/dpkg 2>&1 || { echo "not so: dpkg $*"; cat /tmp/dpkg; }; }

exec 2>&1
export SYSTEMD_COLORS=0 DEBIAN_FRONTEND=noninteractive
if test "$(cat /opt/start)" = second; then
	systemctl exit 0
	exit
fi
rm /opt/cleat
mount -t tmpfs none /tmp
mkdir /tmp/upper /tmp/work
mount -t overlay -o lowerdir=/usr,upperdir=/tmp/upper,workdir=/tmp/work overlay /usr || {
	echo "skip: the kernel has no overlay"
	systemctl exit 0
	exit
}
rm -f /usr/sbin/policy-rc.d # which keeps services of containers from starting
mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/dpkg/triggers /var/log
touch /var/lib/dpkg/status /var/lib/dpkg/available

package --install /opt/cleat.deb
eventually is ActiveState inactive
echo "installed: $(systemctl is-enabled cleat-keep), $(property ActiveState), socket $(systemctl is-enabled cleat-keep.socket), $(systemctl is-active cleat-keep.socket)"
cleat keep --status | sed 's/^/installed: /'
cleat net create web --subnet 10.20.0.0/24
before=$(keeper)
package --install /opt/cleat.deb
device && test "$(keeper)" = "$before" && echo "installed again: the keeper goes on"
cleat keep --install | sed 's/^/installed again: /'

node() { systemctl show --property=MainPID --value cleat-node; }
runs() { cleat-node status >/dev/null 2>&1 && test "$(node)" != 0; }
other() { runs && test "$(node)" != "$1"; }
ip address add 192.0.2.1/24 dev lo
echo "node: $(systemctl is-enabled cleat-node), $(systemctl is-active cleat-node)"
cleat-node up --name a --address 192.0.2.1 | sed 's/ [0-9a-f]*,/,/; s/^/node: /'
echo "node: $(systemctl is-active cleat-node)"
node=$(node)
kill -9 $node
eventually other $node && echo "node: killed, and back"
node=$(node)
package --install /opt/cleat.deb
eventually other $node && echo "node: upgraded"
cleat-node down
echo "node: $(systemctl is-active cleat-node), $(systemctl show --property=Result --value cleat-node)"
cleat-node up | sed 's/ [0-9a-f]*,/,/; s/^/node: again: /'
test -e /etc/systemd/system/cleat-keep.service || echo "installed again: no second unit"
package --remove cleat
echo "removed: $(property ActiveState)"
eventually nothing && echo "removed: no device, no process"
package --install /opt/cleat.deb
eventually is ActiveState active
echo "restored: active, $(property StatusText)"
eventually device && echo "restored: the network is back"
package --purge cleat
echo "purged: $(property LoadState), $(property ActiveState)"
eventually nothing && echo "purged: no device, no process"
find /etc /var /run /usr/bin /usr/share /usr/lib/systemd -name '*cleat*' ! -path '/usr/share/*/*.py' | grep . || echo "purged: no file"
systemctl exit 0
