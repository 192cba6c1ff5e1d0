#!/bin/bash
# Boots the machine's own systemd, twice, as process 1 of a host made of namespaces whose only files
# are the machine's programs: host.sh GROUP STORY TOLD [PACKAGE]. Each time a service runs STORY,
# which ends with `systemctl exit CODE`; what it prints goes to the file TOLD. PACKAGE is
# /opt/cleat.deb there. All is in GROUP, a control group of version 2. Kernel settings but those of
# networks can be read.
set -eu
echo $$ >"$1/cgroup.procs"
exec unshare --mount --pid --cgroup --fork --kill-child bash -c '
set -u
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /mnt
cd /mnt
mkdir -p usr etc/systemd/system/multi-user.target.wants dev proc sys run tmp var opt root old
for l in bin lib lib64 sbin; do ln -s usr/$l $l; done
cp "$(command -v cleat)" opt/cleat
cp "$2" opt/story
: >opt/told
test $# -lt 4 || cp "$4" opt/cleat.deb
mount --bind "$3" opt/told
for f in passwd group nsswitch.conf ld.so.cache alternatives; do test ! -e /etc/$f || cp -r /etc/$f etc/; done
echo 0123456789abcdef0123456789abcdef >etc/machine-id
# What is the kernel'\''s, or takes time for nothing.
for u in systemd-{sysctl,modules-load,udevd,udev-trigger,logind,timesyncd,networkd,resolved}.service console-getty.service getty.target dbus.{socket,service} \
	systemd-journald-audit.socket modprobe@.service kmod-static-nodes.service dev-hugepages.mount sys-fs-fuse-connections.mount sys-kernel-{debug,tracing,config}.mount; do
	ln -s /dev/null etc/systemd/system/$u
done
cat >etc/systemd/system/story.service <<END
[Service]
ExecStart=/bin/bash /opt/story
Environment=PATH=/opt:/usr/sbin:/usr/bin
StandardOutput=append:/opt/told
StandardError=append:/opt/told
END
ln -s ../story.service etc/systemd/system/multi-user.target.wants/
for start in first second; do
	echo $start >opt/start
	unshare --mount --pid --net --uts --ipc --fork --kill-child bash -c "
		set -eu
		mount --rbind /mnt /mnt
		cd /mnt
		mount --bind /usr usr
		mount -o remount,bind,ro usr
		mount -t tmpfs none usr/local/lib
		mount -t proc none proc
		mount --bind proc/sys proc/sys
		mount --bind proc/sys/net proc/sys/net
		mount -o remount,bind,ro proc/sys
		mount -t sysfs -o ro none sys
		mount -t cgroup2 none sys/fs/cgroup
		mount -t tmpfs -o mode=755 none dev
		for d in null zero full random urandom; do : >dev/\$d; mount --bind /dev/\$d dev/\$d; done
		mkdir dev/shm
		mount -t tmpfs none dev/shm
		mount -t tmpfs -o mode=755 none run
		pivot_root . old
		umount -l /old
		exec env -i container=cleat PATH=/usr/sbin:/usr/bin /lib/systemd/systemd --log-target=null --show-status=no
	"
	echo "$start start ended: $?" >>opt/told
done
' "$0" "$@"
