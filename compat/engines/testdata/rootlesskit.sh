#!/bin/bash
# RootlessKit, as an ordinary user: rootlesskit.sh HELPER NET, where HELPER is
# "cleat", or "debian" for Debian's programs, and NET is slirp4netns or pasta.
# A rootlesskit among the programs goes before Debian's.
# Each line of the answer begins with what it is about.
set -u
. /run/cleat/office.sh
helper=$1 net=$2

kit=rootlesskit
[ -e /run/cleat/rootlesskit ] && kit=/run/cleat/rootlesskit
binary=
if [ "$helper" = cleat ]; then
	mkdir /run/cleat/bin
	ln -s ../cleat /run/cleat/bin/$net
	binary="--$net-binary=/run/cleat/bin/$net"
	[ $net = pasta ] && binary= PATH=/run/cleat/bin:$PATH
fi
case $net in
slirp4netns) ports="--port-driver=slirp4netns -p 0.0.0.0:8080:80/tcp -p 127.0.0.1:8081:81/tcp -p 0.0.0.0:5353:53/udp" gateway=10.0.2.2 ;;
pasta) ports="--port-driver=implicit" gateway=10.0.2.2 ;;
esac

cat > /tmp/inside <<'SH'
#!/bin/sh
/run/cleat/whoami tcp:80 tcp:81 tcp:8082 udp:53 udp:5354 &
ip -o addr show scope global | sed 's/^/address: /'
ip route | sed 's/^/route: /'
echo "resolver: $(grep nameserver /etc/resolv.conf)"
echo "out: $(busybox wget -T 5 -qO- http://192.0.2.1:8000/ 2>&1)"
echo "name: $(busybox nslookup -type=a outside.example | grep -c 203.0.113.7)"
echo "ping: $(ping -c 1 -W 5 192.0.2.1 2>&1 | grep -c ' 1 received')"
echo "host's loopback by the gateway: $(busybox wget -T 5 -qO- http://$1:9001/ 2>&1)"
touch /tmp/inside.done
until [ -e /tmp/outside.done ]; do sleep 0.05; done
SH
cat > /tmp/begin <<SH
#!/bin/sh
export XDG_RUNTIME_DIR=/run/user/1500 HOME=/home/tester PATH=$PATH
cd
exec $kit --net=$net --mtu=65520 --copy-up=/etc $binary $ports "\$@" /tmp/inside $gateway
SH
chmod 755 /tmp/inside /tmp/begin
shift 2
setpriv --reuid tester --regid tester --init-groups /tmp/begin "$@" 2>&1 &
job=$!
for i in $(seq 200); do [ -e /tmp/inside.done ] && break; sleep 0.05; done
echo "helpers: $(running $net | wc -l)"
running $net | sed "s/^/helper: /"
there() { $outside bash -c "$(declare -f fetch ask); $*"; }
case $net in
slirp4netns)
	echo "in from outside: $(there fetch 192.0.2.10 8080)"
	echo "in from loopback: $(fetch 127.0.0.1 8080)"
	echo "in at loopback only: $(fetch 127.0.0.1 8081)"
	echo "in at loopback only, from outside: $(there fetch 192.0.2.10 8081)"
	echo "in by UDP from outside: $(there ask 192.0.2.10 5353 | head -1)"
	;;
pasta)
	for i in $(seq 50); do there fetch 192.0.2.10 8082 | grep -q from && break; sleep 0.1; done
	echo "in from outside: $(there fetch 192.0.2.10 8082)"
	echo "in by UDP from outside: $(there ask 192.0.2.10 5354 | head -1)"
	;;
esac
touch /tmp/outside.done
wait $job
echo "rootlesskit: $?"
for i in $(seq 50); do [ -z "$(running $net)" ] && break; sleep 0.1; done
echo "helpers afterwards: $(running $net | wc -l)"
