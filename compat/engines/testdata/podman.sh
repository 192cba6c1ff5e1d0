#!/bin/bash
# Rootless Podman with a container that publishes ports: podman.sh HELPER [ARG...],
# where HELPER is "cleat", or "pasta" for Debian's, and ARGs go to podman run.
# Each line of the answer begins with what it is about.
set -u
. /run/cleat/office.sh
helper=$1
shift

image
tar -C /tmp/image -cf /tmp/image.tar .

install -d -o tester -g tester /home/tester/.config /home/tester/.config/containers
if [ "$helper" = cleat ]; then
	mkdir /run/cleat/bin
	ln -s ../cleat /run/cleat/bin/pasta
	ln -s ../cleat /run/cleat/bin/slirp4netns
	cat > /home/tester/.config/containers/containers.conf <<'CONF'
[engine]
helper_binaries_dir = ["/run/cleat/bin", "/usr/libexec/podman", "/usr/lib/podman"]
CONF
fi

cat > /tmp/podman <<'SH'
#!/bin/sh
export XDG_RUNTIME_DIR=/run/user/1500 HOME=/home/tester
cd
exec podman --cgroup-manager=cgroupfs --storage-driver=vfs --log-level=error "$@"
SH
chmod 755 /tmp/podman
podman() { setpriv --reuid tester --regid tester --init-groups /tmp/podman "$@"; }
helpers() { running pasta; running slirp4netns; }
inside() { podman exec web "$@" 2>&1; }
echo "version: $(podman --version)"
podman import -q /tmp/image.tar test > /dev/null
podman run -d --name web --cap-add NET_RAW "$@" -p 8080:80 -p 127.0.0.1:8081:81 -p 5353:53/udp test whoami tcp:80 tcp:81 udp:53 > /dev/null
echo "run: $?"
echo "helpers: $(helpers | wc -l)"
helpers | sed 's/^/helper: /'
inside ip -o addr show scope global | sed 's/^/address: /'
inside ip route | sed 's/^/route: /'
echo "out: $(inside wget -T 5 -qO- http://192.0.2.1:8000/)"
echo "name: $(inside nslookup -type=a outside.example | grep -c 203.0.113.7)"
echo "ping: $(inside ping -c 1 -W 5 192.0.2.1 | grep -c ' 1 packets received')"
echo "host: $(inside wget -T 5 -qO- http://host.containers.internal:9000/)"
echo "host's loopback by the gateway: $(inside wget -T 5 -qO- http://192.0.2.1:9001/)"
echo "in from outside: $($outside bash -c "$(declare -f fetch); fetch 192.0.2.10 8080")"
echo "in from the host: $(fetch 192.0.2.10 8080)"
echo "in from loopback: $(fetch 127.0.0.1 8080)"
echo "in at loopback only: $(fetch 127.0.0.1 8081)"
echo "in at loopback only, from outside: $($outside bash -c "$(declare -f fetch); fetch 192.0.2.10 8081")"
echo "in by UDP from outside: $($outside bash -c "$(declare -f ask); ask 192.0.2.10 5353" | head -1)"
podman rm -f -t 0 web > /dev/null
echo "rm: $?"
for i in $(seq 50); do [ -z "$(helpers)" ] && break; sleep 0.1; done
echo "helpers afterwards: $(helpers | wc -l)"
