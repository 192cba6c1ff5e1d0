package docker

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"cleat/internal/procstat"
	"cleat/netns"
	"cleat/network/named"

	"golang.org/x/sys/unix"
)

// A direct link is made in the container, whose namespace exists. Docker then has nothing to move, for which
// the kernel waits twice (__dev_change_net_namespace, net/core/dev.c). Docker does not know the link.

// directName is the name of a direct link. Docker counts the names of its own links up from eth0, without a
// look at others.
const directName = ifPrefix + "100"

// fitsDirect reports whether a link can be made in the namespace of a container by a daemon. The first link is
// handed over, so that it is called eth0 as ever, and so is each beside a direct one: after a restart the daemon
// takes several links without a name on the host for one. If the namespace is of a former daemon, this one may
// know a direct link by its address, and once that was disconnected, version 28 ends by closing a channel twice
// when the next one is (moby, libnetwork/osl, RemoveInterface).
func fitsDirect(of *named.Network, key string, daemon int) bool {
	if of.Driver != named.Bridge {
		return false // Docker makes routes to a gateway without a subnet only for links that it moves
	}
	ns, err := netns.Open(key)
	if err != nil {
		return false // the container does not run yet
	}
	defer ns.Close()
	if st, err := os.Stat(key); err != nil || !st.ModTime().After(started(daemon)) {
		return false
	}
	fits := false
	err = ns.Do(func() error {
		links, err := net.Interfaces()
		fits = slices.ContainsFunc(links, func(l net.Interface) bool { return strings.HasPrefix(l.Name, ifPrefix) }) &&
			!slices.ContainsFunc(links, func(l net.Interface) bool { return l.Name == directName })
		return err
	})
	return fits && err == nil
}

// started returns when a process was started; the time of the call if that is not known.
func started(pid int) time.Time {
	now := time.Now()
	var sinceBoot unix.Timespec
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot) != nil {
		return now
	}
	stat, _ := procstat.Parse(text)
	afterBoot, ok := stat.Started()
	if !ok {
		return now
	}
	return now.Add(afterBoot - time.Duration(sinceBoot.Nano()))
}
