#!/bin/sh
# Makes a tree of Debian sid with the programs that start pasta and slirp4netns,
# for TestPodman and TestRootlessKit: tree.sh [DIR [experimental]]. With
# "experimental" the newest there is of each. Needs root, mmdebstrap, and half a
# minute; takes 1 GB.
set -eu
dir=${1:-/var/tmp/cleat-sid} newest=${2:-}
# The machine's own mirror; sid's Release file may be past its date there.
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources | head -1)
set -- sid "$dir.new" "deb $mirror sid main"
if [ "$newest" = experimental ]; then
	set -- --aptopt='APT::Default-Release "experimental"' "$@" "deb $mirror experimental main"
fi
mmdebstrap --mode=root --variant=minbase \
	--aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Sandbox::User "root"' --aptopt='Acquire::Languages "none"' \
	--include=podman,passt,slirp4netns,rootlesskit,crun,uidmap,netavark,aardvark-dns,nftables,iproute2,iputils-ping,iperf3,curl,git,openssh-client,socat,jq,busybox-static,python3-minimal,ca-certificates,apptainer,tcpdump,bind9-dnsutils \
	"$@"
mv "$dir.new" "$dir"
