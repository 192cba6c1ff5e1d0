#!/bin/bash
# Podman's containers on networks of cleat: networks.sh MODE, after a page of the documentation, whose blocks
# are in /run/cleat. Each line of the answer begins with what it is about.
#
#	in-place   root's Podman starts cleat in the place of netavark
#	plugin     root's Podman starts netavark, which starts cleat as its plug-in
#	both       root's Podman starts cleat in the place of netavark, which starts itself as plug-in
#	rootless   an ordinary user's Podman starts cleat in the places of netavark and pasta
set -u
. /run/cleat/office.sh
mode=$1

image
tar -C /tmp/image -cf /tmp/image.tar .
cp /run/cleat/cleat /run/cleat/cleat-cni /usr/local/bin/
sudo() { "$@"; }
cat > /tmp/podman <<'SH'
#!/bin/sh
cd
verb=$1
shift
[ "$verb" != run ] || verb="run --cgroups disabled"
exec podman --cgroup-manager=cgroupfs --storage-driver=vfs --events-backend=none --log-level=error $verb "$@"
SH
chmod 755 /tmp/podman
podman() { /tmp/podman "$@"; }
# typed runs a block of the page, as somebody types it.
typed() {
	. "/run/cleat/$1.sh" > /tmp/typed 2>&1 || echo "typed: $(tail -1 /tmp/typed)"
}
# networks prints the lines about containers or networks of what was typed.
networks() { tr -s ' ' < /tmp/typed | grep -E "^[a-z]+ (podman|netns|bridge) " | sed "s/^/$1: /"; }

case $mode in
in-place)
	podman import -q --change 'CMD ["whoami", "tcp:80"]' /tmp/image.tar docker.io/library/nginx > /dev/null
	typed in-place
	;;
plugin | both)
	podman import -q --change 'CMD ["whoami", "tcp:80"]' /tmp/image.tar docker.io/library/nginx > /dev/null
	if [ $mode = both ]; then
		mkdir -p /usr/local/lib/cleat /etc/containers/containers.conf.d
		ln -s /usr/local/bin/cleat-cni /usr/local/lib/cleat/netavark
		printf '[engine]\nhelper_binaries_dir = ["/usr/local/lib/cleat", "/usr/libexec/podman", "/usr/lib/podman"]\n' > /etc/containers/containers.conf.d/cleat.conf
	fi
	typed plugin
	podman run -d --network shop --name api docker.io/library/nginx > /dev/null
	ip netns add guest
	ip netns exec guest ip link set lo up
	cleat net connect shop netns:guest > /dev/null
	cleat net ls shop > /tmp/typed
	echo "from a namespace: $(ip netns exec guest bash -c "$(declare -f fetch); fetch $(podman inspect -f '{{.NetworkSettings.Networks.shop.IPAddress}}' api) 80" | sed 's/from 10.20.0.*/reached/')"
	;;
rootless)
	install -d -o tester -g tester /home/tester/helpers /home/tester/.config /home/tester/.config/containers
	ln -s /usr/local/bin/cleat-cni /home/tester/helpers/netavark
	ln -s /usr/local/bin/cleat /home/tester/helpers/pasta
	printf '[engine]\nhelper_binaries_dir = ["/home/tester/helpers", "/usr/libexec/podman", "/usr/lib/podman"]\n' > /home/tester/.config/containers/containers.conf
	podman() { as /tmp/podman "$@"; }
	podman import -q --change 'CMD ["whoami", "tcp:80"]' /tmp/image.tar docker.io/library/nginx > /dev/null
	podman network create --subnet 10.20.0.0/24 shop > /dev/null
	podman run -d --network shop --name api docker.io/library/nginx > /dev/null
	XDG_RUNTIME_DIR=/run/user/1500 typed rootless
	;;
esac
networks ls
podman run -d --network shop --name front --publish 8080:80 docker.io/library/nginx > /dev/null
echo "by name: $(podman exec front busybox nc -w 5 api 80 < /dev/null 2>&1 | grep -c "from 10\.")"
echo "name: $(podman exec front nslookup -type=a outside.example 2>&1 | grep -c 203.0.113.7)"
echo "out: $(podman exec front wget -T 5 -qO- http://192.0.2.1:8000/)"
echo "published, from outside: $($outside bash -c "$(declare -f fetch); fetch 192.0.2.10 8080" | cut -d' ' -f1)"
echo "published, from loopback: $(fetch 127.0.0.1 8080 | cut -d' ' -f1)"
podman rm -f -t 0 api front > /dev/null
podman network rm shop > /dev/null && echo "removed: 1"
if [ $mode = plugin ] || [ $mode = both ]; then
	cleat net rm --force shop > /dev/null
fi
if [ $mode != rootless ]; then
	for i in $(seq 50); do ip link | grep -qE ": (podman|cl-|clb|veth)" || break; sleep 0.1; done
	echo "left: $(ip -o link | grep -cE ": (podman|cl-|clb|veth)") devices, $(find /var/lib/cleat/networks /var/lib/cleat/attachments -type f | wc -l) files"
fi
