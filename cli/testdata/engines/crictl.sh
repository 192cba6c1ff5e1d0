# Pods of containerd on a network of Cleat, as doc/plugins.md says. Each story says "done" at its end, and
# before that what is not as expected.
. "${1%/*}/pages.sh"
. "${1%/*}/with_containerd.sh"
. "${1%/*}/stories.sh"
cd /dev/shm
has_box
patience=20 # the keeper looks every 10 s for pods that ended
unset CLEAT_STATE_DIR
echo 'nameserver 198.51.100.9' >/etc/resolv.conf


# A script, so that xargs finds it as well.
printf '#!/bin/sh\nPATH=%s exec crictl --runtime-endpoint unix:///run/containerd/containerd.sock --timeout 20s "$@"\n' "$PATH" >bin/pods
chmod +x bin/pods
stop_all() { pods pods --quiet | xargs -r pods rmp --force >/dev/null; }
# network creates the network that pods are on.
network() { cleat net inspect web >/dev/null 2>&1 || ok cleat net create web --subnet 10.20.0.0/24; cleat net cni-conf web >/etc/cni/net.d/50-web.conflist; }
# pod NAME [HOST_PORT] runs a pod of namespace prod, whose sandbox serves port 80.
pod() {
	local ports=
	test $# = 1 || ports=',"port_mappings":[{"container_port":80,"host_port":'$2'}]'
	printf '{"metadata":{"name":"%s","namespace":"prod","uid":"uid-%s"},"log_directory":"/dev/shm","linux":{"cgroup_parent":"/%s"}%s}' \
		$1 $1 $group "$ports" >$1.pod
	pods runp $1.pod
}
# run NAME [HOST_PORT] runs a pod and waits until it serves.
run() { ok pod "$@"; soon ':0050 ' net $1 cat /proc/net/tcp /proc/net/tcp6; }
id() { pods pods --quiet --name "^$1\$"; }
pid() { pods inspectp --output go-template --template '{{.info.pid}}' $(id $1); }
ip4() { pods inspectp --output go-template --template '{{.status.network.ip}}' $(id $1); }
row() { cleat net ls web | tr -s ' ' | grep -w -- "$1"; }
endpoints() { cleat net ls web | grep -c '^pod:'; }
is_ready() { soon NetworkReady=true pods info --output go-template --template '{{range .status.conditions}}{{.type}}={{.status}} {{end}}'; }
kill_containerd() { kill -9 $containerd; wait $containerd 2>/dev/null; }

story_page() {
	run front 8080
	is "pod:prod/front pod eth0 10.20.0." row front
	is "8080:80 attached" row front
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	is 10.20.0. box ask 127.0.0.1:8080
	is_ready
	ok pods rmp --force $(id front)
	is 0 endpoints
	is refused outside_asks 198.51.100.1:8080
}
story_names() {
	network
	run api
	run front
	plain pl web
	is "$(ip4 api)" row api
	for who in api api.prod api.web; do
		is "$(ip4 api)" at front /box lookup $who
		is "$(ip4 api)" there pl box lookup $who
	done
	is "$(ip4 front)" at front /box ask api.prod:80
	is "$(row pl | cut -d' ' -f4)" at api /box lookup pl
	is "no such host" at front /box lookup nobody
	ok cleat net deny web/front to web/api
	is timeout at front /box ask api:80
	unplain pl
}
# A container that runs in a pod shares its network.
story_container() {
	network
	run api
	echo '{"metadata":{"name":"c"},"image":{"image":"docker.io/library/image:latest"},"command":["/box","serve","81"],"log_path":"c.log","linux":{}}' >c.json
	c=$(pods create $(id api) c.json api.pod) || bad "create: $c"
	ok pods start $c
	plain pl web
	soon 10.20.0. there pl box ask api:81
	is "$(ip4 api)" pods exec $c /box lookup api
	unplain pl
	ok pods rm --force $c
	is refused box ask $(ip4 api):81
	is attached row api
}
story_stop() {
	network
	run api 8080
	is "in use by" pod other 8080
	stopped=$(id api)
	ok pods stopp $stopped
	isnt prod/api cleat net ls web
	is refused outside_asks 198.51.100.1:8080
	ok pods rmp $stopped
	run api 8080
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	is 1 endpoints
}
story_many() {
	network
	local starting=()
	for n in $(seq 20); do pod many$n & starting[n]=$!; done >many.log 2>&1
	for n in $(seq 20); do wait ${starting[n]} || bad "many$n: $(cat many.log)"; done
	is 20 endpoints
	is 20 echo $(cleat net ls web | grep -o '10\.20\.0\.[0-9]*' | sort -u | wc -l)
	is 10.20.0. at many1 /box ask many20.prod:80
	pods pods --quiet | xargs -n 1 -P 20 pods rmp --force >/dev/null || bad "not all are removed"
	is 0 endpoints
}
# containerd is killed while it starts pods.
story_killed_containerd() {
	network
	run api 8080
	local starting=()
	for n in $(seq 6); do pod c$n >/dev/null 2>&1 & starting[n]=$!; done
	soon prod/c cleat net ls web
	kill_containerd
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	wait ${starting[*]}
	start_containerd
	is_ready
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	run late
	is "$(ip4 late)" at late /box ask api:80
	ok stop_all
	# containerd 1.6 forgets the namespace of a pod that it was about to make
	ls /run/netns | grep ^cni- | xargs -r -n 1 ip netns del
	gone_soon pod: cleat net ls web
}
# A pod ends while no containerd runs, which could disconnect it.
story_forgotten() {
	network
	run api 8080
	ends=$(pid api)
	shim=$(ps -o ppid= $ends)
	space=$(basename $(pods inspectp $(id api) | grep -o -m 1 '/run/netns/[^"]*'))
	kill_containerd
	kill -9 $shim $ends
	ip netns del $space
	gone_soon prod/api cleat net ls web
	is refused outside_asks 198.51.100.1:8080
	start_containerd
	is_ready
	run next 8080
	is 198.51.100.9 outside_asks 198.51.100.1:8080
	ok pods rmp --force $(id api)
	is 1 endpoints
}

# The first `ip netns add` mounts /run/netns once more. containerd can't remove pods that were there before.
ip netns add first && ip netns del first
typed plugins.md "cleat net cni-conf web > /etc/cni/net.d/50-web.conflist"
cat >/opt/cni/bin/loopback <<-'END' # of the reference plug-ins, which containerd runs for each pod
	#!/bin/sh
	test "$CNI_COMMAND" != ADD || nsenter --net="$CNI_NETNS" ip link set lo up
	echo '{"cniVersion": "1.0.0"}'
END
chmod +x /opt/cni/bin/loopback
start_containerd '[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "docker.io/library/image:latest"\nrestrict_oom_score_adj = true'
image_archive image.tar image
ctr --namespace k8s.io images import image.tar >/dev/null || echo "image: not loaded"
for s in page names container stop many killed_containerd forgotten; do story $s; done
nothing_is_left /var/lib/cleat
kill $containerd; wait $containerd
