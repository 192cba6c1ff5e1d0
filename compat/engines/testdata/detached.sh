#!/bin/bash
# RootlessKit as rootless Docker sets it up: the network namespace is detached,
# and the helper gets its path in another mount namespace.
set -u
. /run/cleat/office.sh
mkdir /run/cleat/bin
ln -s ../cleat /run/cleat/bin/slirp4netns

cat > /tmp/inside <<'SH'
#!/bin/sh
into="nsenter --net=$ROOTLESSKIT_STATE_DIR/netns"
# A helper that watches the path looks once a second.
sleep 2.5
$into ip -o addr show scope global | sed 's/^/address: /'
echo "out: $($into busybox wget -T 5 -qO- http://192.0.2.1:8000/ 2>&1)"
SH
cat > /tmp/begin <<SH
#!/bin/sh
export XDG_RUNTIME_DIR=/run/user/1500 HOME=/home/tester PATH=$PATH
cd
exec rootlesskit --net=slirp4netns --mtu=65520 --copy-up=/etc --copy-up=/run --detach-netns \
	--slirp4netns-binary=/run/cleat/bin/slirp4netns --port-driver=slirp4netns /tmp/inside
SH
chmod 755 /tmp/inside /tmp/begin
setpriv --reuid tester --regid tester --init-groups /tmp/begin 2>&1
echo "rootlesskit: $?"
for i in $(seq 50); do [ -z "$(running slirp4netns)" ] && break; sleep 0.1; done
echo "helpers afterwards: $(running slirp4netns | wc -l)"
