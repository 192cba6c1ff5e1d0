# How systemd starts a keeper for Docker's requests: run by host.sh.

eventually() { for i in $(seq 500); do "$@" && return; sleep 0.02; done; echo "not so: $*"; false; }
keeper() { cleat keep --status | sed -n 's/^a keeper runs, process //p'; }
somebody() { test -n "$(keeper)"; }
another() { test -n "$(keeper)" && test "$(keeper)" != $1; }
# asks prints what the plug-in implements, and fails if that takes longer than a keeper needs to start.
asks() { curl -s --max-time 4 --unix-socket /run/docker/plugins/cleat.sock -X POST http://x/Plugin.Activate; }

exec 2>&1
if test "$(cat /opt/start)" = second; then
	echo "boot: $(asks)"
	systemctl exit 0
	exit
fi
cleat keep --print-unit >/etc/systemd/system/cleat-keep.service
cleat keep --print-socket-unit >/etc/systemd/system/cleat-keep.socket
systemctl daemon-reload
systemctl enable --quiet --now cleat-keep.socket
echo "before: $(systemctl is-active cleat-keep.socket), $(systemctl is-active cleat-keep.service)"
echo "first request: $(asks)"
eventually somebody
echo "by its socket: $(systemctl is-active cleat-keep.service)"
old=$(keeper)
kill -9 $old
echo "killed: $(asks)"
eventually another $old && echo "killed: another one runs"
systemctl stop cleat-keep.service
test -S /run/docker/plugins/cleat.sock && echo "stopped: the socket stays"
echo "stopped: $(asks)"
cleat attach nobody bridge br0 2>&1 | head -1 | sed 's/^/attach: /'
systemctl exit 0
