# Sourced by scripts that run containerd.

# start_containerd [CONFIGURATION] starts containerd, whose state is in the host's own directories, and
# waits for it. Its process is $containerd.
start_containerd() {
	test $# = 0 || printf 'version = 2\nroot = "/dev/shm/containerd"\nstate = "/run/containerd"\n%b\n' "$1" >/dev/shm/containerd.toml
	containerd --config /dev/shm/containerd.toml >>/dev/shm/containerd.log 2>&1 &
	containerd=$!
	until ctr version >/dev/null 2>&1; do kill -0 $containerd || { cat /dev/shm/containerd.log; exit 1; }; sleep 0.05; done
}
without_cri='disabled_plugins = ["io.containerd.grpc.v1.cri"]'
beside_docker=$without_cri'\n[grpc]\naddress = "/run/containerd/other.sock"'

# image_archive FILE NAME writes an image that has only the program box, for `nerdctl load` and `ctr images
# import`. Its containers serve port 80.
image_archive() {
	local dir=/dev/shm/archive arch
	mkdir -p $dir/root/{etc,proc,sys,tmp}
	cp /dev/shm/bin/box $dir/root/
	tar -C $dir/root -cf $dir/layer.tar .
	case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
	printf '{"architecture":"%s","os":"linux","config":{"Cmd":["/box","serve","80"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		$arch $(sha256sum $dir/layer.tar | cut -d' ' -f1) >$dir/config.json
	printf '[{"Config":"config.json","RepoTags":["%s:latest"],"Layers":["layer.tar"]}]' "$2" >$dir/manifest.json
	tar -C $dir -cf $1 manifest.json config.json layer.tar
}
