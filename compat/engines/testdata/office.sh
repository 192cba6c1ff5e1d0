# Sourced by the stories: a host 192.0.2.10 with an ordinary user "tester" (uid
# 1500), and next to it another machine, 192.0.2.20, which as 192.0.2.1 is its
# gateway and its resolver and serves HTTP at port 8000. $outside runs a command
# over there.

useradd -u 1500 -d /home/tester tester
install -d -m 755 /run/user
install -d -o tester -g tester -m 700 /home/tester /run/user/1500

unshare --net sleep infinity &
there=$!
until [ "$(readlink /proc/$there/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
outside="nsenter --target $there --net"
ip link add ext0 type veth peer name ext1 netns $there
ip addr add 192.0.2.10/24 dev ext0
ip link set ext0 up
ip route add default via 192.0.2.1
$outside ip link set lo up
$outside ip addr add 192.0.2.20/24 dev ext1
$outside ip addr add 192.0.2.1/24 dev ext1
$outside ip link set ext1 up
echo "nameserver 192.0.2.1" > /etc/resolv.conf
echo "127.0.0.1 localhost" > /etc/hosts
echo "0 2147483647" > /proc/sys/net/ipv4/ping_group_range

mkdir /tmp/outside /tmp/host
echo hello from outside > /tmp/outside/index.html
echo hello from the host > /tmp/host/index.html
$outside busybox httpd -p 192.0.2.1:8000 -h /tmp/outside
busybox httpd -p 192.0.2.10:9000 -h /tmp/host
busybox httpd -p 127.0.0.1:9001 -h /tmp/host
# Every name has the address 203.0.113.7.
cat > /tmp/resolver.py <<'PY'
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("192.0.2.1", 53))
open("/tmp/resolver.ready", "w").close()
while True:
    q, asker = s.recvfrom(512)
    i = 12
    while q[i]:
        i += q[i] + 1
    found = q[i + 1:i + 3] == b"\0\1"
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xcb\0\x71\7" if found else b""
    s.sendto(q[:2] + b"\x81\x80" + q[4:6] + (b"\0\1" if found else b"\0\0") + b"\0\0\0\0" + q[12:i + 5] + answer, asker)
PY
$outside python3 /tmp/resolver.py &
until [ -e /tmp/resolver.ready ]; do sleep 0.01; done

# fetch prints what a TCP server says that asks nothing, or "refused".
fetch() { busybox nc -w 5 "$@" < /dev/null 2>/dev/null || echo refused; }
# ask prints what a UDP server answers.
ask() { echo | busybox timeout 5 socat -t 3 - "UDP:$1:$2" 2>/dev/null; }

# running prints the command lines of the processes with this name.
running() {
	for p in /proc/[0-9]*; do
		tr '\0' ' ' 2>/dev/null < $p/cmdline | grep -E "^([^ ]*/)?$1 "
	done 2>/dev/null
}

# as runs a command as the ordinary user.
as() { setpriv --reuid tester --regid tester --init-groups env XDG_RUNTIME_DIR=/run/user/1500 HOME=/home/tester "$@"; }

# image makes a root file system of busybox and whoami in /tmp/image.
image() {
	mkdir -p /tmp/image/bin /tmp/image/etc
	cp /bin/busybox /run/cleat/whoami /tmp/image/bin/
	for name in sh wget nslookup ping ip sleep; do ln -s busybox /tmp/image/bin/$name; done
}
