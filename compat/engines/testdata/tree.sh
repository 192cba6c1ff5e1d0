#!/bin/sh
# Makes a tree of a newer Debian with container engines: tree.sh [DIR [SUITE]]. SUITE is sid; or
# experimental, for the newest there is of each; or trixie, with what TestNetworks needs. Needs root,
# mmdebstrap, and half a minute; takes 1 GB.
set -eu
dir=${1:-/var/tmp/cleat-sid} suite=${2:-sid}
programs=podman,passt,crun,uidmap,netavark,aardvark-dns,nftables,iproute2,iputils-ping,busybox-static,python3-minimal
others=slirp4netns,rootlesskit,iperf3,curl,git,openssh-client,socat,jq,ca-certificates,apptainer,tcpdump,bind9-dnsutils
# The machine's own mirror; sid's Release file may be past its date there.
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources | head -1)
case $suite in
trixie) set -- trixie "$dir.new" "deb $mirror trixie main" ;;
sid) set -- sid "$dir.new" "deb $mirror sid main" ;;
experimental) set -- --aptopt='APT::Default-Release "experimental"' sid "$dir.new" "deb $mirror sid main" "deb $mirror experimental main" ;;
esac
[ "$suite" = trixie ] || programs=$programs,$others
mmdebstrap --mode=root --variant=minbase \
	--aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Sandbox::User "root"' --aptopt='Acquire::Languages "none"' \
	--include=$programs "$@"
mv "$dir.new" "$dir"
