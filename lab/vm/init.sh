#!/bin/busybox sh
# The first program in the guest. ttyS0 has the kernel's log, ttyS1 the output of
# this script and of the command.
/bin/busybox mkdir -p /bin /sbin /usr/bin /usr/sbin /var
/bin/busybox --install -s /bin
# Tests use these programs as a reference where they exist; busybox's are none.
cd /bin && ./busybox rm -f ip ipaddr iplink ipneigh iproute iprule iptunnel tc brctl ifconfig route arp vconfig tunctl
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sf /run /var/run
ln -sf /tmp /var/tmp
ln -sf /proc/self/fd /dev/fd
mkdir -p /run/netns /run/lock /etc/openvswitch /run/openvswitch /var/log/openvswitch /var/lib
: >/etc/resolv.conf
stty -F /dev/ttyS1 raw -echo 115200
exec </dev/null >/dev/ttyS1 2>&1
hostname guest
busybox ip link set lo up
{{range .Modules}}modprobe {{quote .}} || echo "init: can't load module "{{quote .}}
{{end}}{{range .Env}}export {{quote .}}
{{end}}
cd /root
{{range .Command}}{{quote .}} {{end}}
status=$?
[ $status -gt 127 ] && status=127
printf '\n%s%s\n' {{quote .Last}} $status
# The byte written to the exit port ends QEMU at once, even if the serial port has
# not sent everything. So close it before: the last close of a terminal waits for
# its output.
exec >/dev/null 2>&1
printf "\\$(printf %o $status)" | dd of=/dev/port bs=1 seek=1281
poweroff -f
