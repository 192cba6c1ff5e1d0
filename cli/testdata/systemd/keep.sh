# What systemd does with keepers: run by host.sh. A container is a namespace here.

eventually() { for i in $(seq 500); do "$@" && return; sleep 0.02; done; echo "not so: $*"; false; }
there() { ip -n web -brief address show eth0 2>/dev/null | grep -q 192.0.2.10; }
booted() { ip -brief address show cl-boot 2>/dev/null | grep -q 10.30.0.1 && ip -n web -brief address | grep -q 10.30.0.2; }
again() { ip netns delete web; ip netns add web; eventually there && echo "$1: attached again"; }
property() { systemctl show --property=$1 --value cleat-keep; }
is() { test "$(property $1)" = "$2"; }
keeper() { cleat keep --status | sed -n 's/^a keeper runs, process //p'; }
ours() { systemctl list-units --all --plain --no-legend --type service | grep started.on.demand; }
somebody() { test -n "$(keeper)"; }
nobody() { test -z "$(keeper)$(ours)"; }
# asks has a service attach, and end with that
asks() { systemctl start asks && test "$(systemctl is-active asks)" = inactive; }

exec 2>&1
export SYSTEMD_COLORS=0
if test "$(cat /opt/start)" = second; then
	eventually is ActiveState active
	echo "second start: $(property ActiveState), $(property StatusText)"
	ip netns add web
	eventually there && echo "second start: attached again"
	eventually booted && echo "second start: networks are back"
	cleat net check && echo "second start: $(cleat net ls boot | awk '$1 == "web" { print $1, $4, $NF }')"
	cleat keep --down | sed 's/^/down: /'
	there || booted || echo "down: nothing is left in the kernel"
	ls /var/lib/cleat/networks /var/lib/cleat/attachments | sed 's/^/down: /'
	systemctl start cleat-keep
	eventually there && eventually booted && echo "down: the next keeper brought it back"
	cleat net rm --force boot
	cleat detach web eth0
	eventually is ActiveState inactive && echo "idle: $(property Result)"
	systemctl start cleat-keep
	eventually is ActiveState inactive && echo "idle: $(property Result), after another start"
	cleat keep --uninstall
	ls /etc/systemd/system | grep -q '^cleat' || echo "uninstalled: the units are gone"
	nobody && echo "uninstalled: no keeper runs"
	systemctl exit 0
	exit
fi

cat >/etc/systemd/system/asks.service <<END
[Service]
Type=oneshot
PrivateTmp=yes
ExecStart=/opt/cleat attach web bridge br0 --ip 192.0.2.10/24 --keep
END
ip netns add web
asks
eventually somebody
echo "on demand: $(sed -n 's,^0::/system.slice/run-[^/]*.service$,a service of its own,p' /proc/$(keeper)/cgroup)"
again "on demand"
group=$(sed -n 's/^0:://p' /proc/$(keeper)/cgroup)
kill -9 $(keeper)
eventually nobody
eventually test ! -e /sys/fs/cgroup$group && echo "on demand: killed, nothing is left"
cleat detach web eth0
asks
eventually somebody

cleat net create none | sed 's/^/before: /'
cleat net rm none
shipped=/usr/local/lib/systemd/system/cleat-keep.service
enabled() { echo $(systemctl is-enabled cleat-keep.service cleat-keep.socket); }
mkdir -p ${shipped%/*}
cleat keep --print-unit >$shipped
cleat keep --print-socket-unit >${shipped%.service}.socket
cleat keep --install | sed 's/^/shipped: /'
echo "shipped: $(enabled), $(systemctl is-active cleat-keep.socket)"
ls /etc/systemd/system | grep -q '^cleat' || echo "shipped: no second units"
cleat keep --uninstall
echo "shipped: $(enabled), $(systemctl is-active cleat-keep.socket)"
cleat keep --uninstall | sed 's/^/shipped: /'
echo '# a unit of another version' >>$shipped
rm ${shipped%.service}.socket
cleat keep --install | sed 's/^/installed: /'
cleat keep --print-unit | cmp - /etc/systemd/system/cleat-keep.service
cleat keep --print-socket-unit | cmp - /etc/systemd/system/cleat-keep.socket
echo "unit: $(enabled)"
eventually is StatusText "waits while another keeper runs"
echo "unit: $(property ActiveState), $(property StatusText)"
kill -9 $(keeper)
eventually is StatusText "keeps attachments"
echo "unit: $(property ActiveState), $(property StatusText)"
test "$(keeper)" = "$(property MainPID)" && echo "unit: it is the keeper"
again unit
systemctl restart cleat-keep
echo "restarted: $(property ActiveState), $(property StatusText)"
again restarted
killed=$(keeper)
kill -9 $killed
eventually is NRestarts 1
eventually is ActiveState active
test "$(property MainPID)" != $killed && echo "killed: $(property ActiveState), $(property StatusText)"
again killed
cleat net create boot --subnet 10.30.0.0/24 | sed 's/^/after: /'
cleat net connect boot web --no-dns | sed 's/^/after: /'
systemctl stop cleat-keep
echo "stopped: $(property ActiveState), $(property Result), $(property ExecMainStatus)"
there && echo "stopped: what is attached stays"
nobody && echo "stopped: no keeper runs"
journalctl --sync
journalctl --quiet --no-pager --output=cat --unit cleat-keep | sed 's/^/journal: /'
systemctl exit 0
