package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// self is this program, even if its file has been replaced or removed.
const self = "/proc/self/exe"

// setupCaps are the capabilities that the setup process needs in its new namespaces: for the
// device, addresses and sysctls, and for the mount over resolv.conf.
var setupCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}

// Wrap changes cmd, which has not been started, so that it runs in new user, network and
// mount namespaces, with this network. It works for any program. Main must call Init first,
// because the new namespaces are prepared by running this program again. Wrap changes cmd's
// Path, Env, ExtraFiles and SysProcAttr; SysProcAttr.Chroot can't be used.
//
// Start cmd, then call Run: the command starts once its network is ready. If Start fails,
// StartError explains the error.
func (n *Network) Wrap(cmd *exec.Cmd) error {
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Chroot != "" {
		return fmt.Errorf("give %s a network: SysProcAttr.Chroot is set, and this program is not in that root: use Attach", cmd.Path)
	}
	attr, groups, err := namespaceAttr(cmd, n.cfg.MapRoot)
	if err != nil {
		return err
	}
	attr.Cloneflags |= unix.CLONE_NEWNS
	attr.AmbientCaps = slices.Concat(attr.AmbientCaps, setupCaps)
	slices.Sort(attr.AmbientCaps)
	attr.AmbientCaps = slices.Compact(attr.AmbientCaps)
	p := n.commandPlan(groups)
	n.planSupervisor(&p)
	p.MountResolvConf = p.ResolvConf != nil && !n.cfg.DNS.KeepResolvConf
	p.Exec = cmd.Path
	if err := n.setCommand(cmd, attr, roleWrap, p); err != nil {
		return err
	}
	if cmd.Err == nil {
		cmd.Path = self
	}
	return nil
}

// Attach prepares cmd, which has not been started and whose program calls Open. It appends
// one file to cmd.ExtraFiles after the caller's own and names it in an environment variable.
// It adds new user and network namespaces to cmd.SysProcAttr, and id mappings that make the
// child root in there unless the caller has set some. Start cmd, then call Run. If Start
// fails, StartError explains the error.
func (n *Network) Attach(cmd *exec.Cmd) error {
	if err := n.rejectSeccompTier(); err != nil {
		return err
	}
	attr, groups, err := namespaceAttr(cmd, true)
	if err != nil {
		return err
	}
	return n.setCommand(cmd, attr, roleAttach, n.commandPlan(groups))
}

// setCommand makes cmd the network's command, and sends it the plan.
func (n *Network) setCommand(cmd *exec.Cmd, attr *syscall.SysProcAttr, role string, p plan) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case cmd.Process != nil:
		return fmt.Errorf("give %s a network: it was started already", cmd.Path)
	case n.state != stateNew:
		return errors.New("give a command a network: the network has a namespace already, or was closed")
	}
	ours, theirs, err := newChannel()
	if err != nil {
		return err
	}
	if err := ours.send(p); err != nil {
		ours.close()
		theirs.Close()
		return err
	}
	if attr.PidFD == nil {
		attr.PidFD = &n.pidfd
	}
	cmd.SysProcAttr = attr
	cmd.Env = append(slices.DeleteFunc(cmd.Environ(), func(kv string) bool { return strings.HasPrefix(kv, roleEnv+"=") }),
		roleEnv+"="+role+":"+strconv.Itoa(3+len(cmd.ExtraFiles)))
	cmd.ExtraFiles = append(slices.Clip(cmd.ExtraFiles), theirs)
	n.state, n.cmd, n.channel, n.childEnd = stateBound, cmd, ours, theirs
	return nil
}

// namespaceAttr returns cmd's SysProcAttr with new namespaces, and the range of group ids in
// there that may send pings. asRoot maps an ordinary user to root in there.
func namespaceAttr(cmd *exec.Cmd, asRoot bool) (attr *syscall.SysProcAttr, pingGroups string, err error) {
	attr = &syscall.SysProcAttr{}
	if cmd.SysProcAttr != nil {
		*attr = *cmd.SysProcAttr
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_NEWNET
	if attr.UidMappings == nil && attr.GidMappings == nil {
		if err := mapIDs(attr, asRoot); err != nil {
			return nil, "", err
		}
	}
	if len(attr.GidMappings) > 0 {
		const maxGroup = 1<<31 - 1 // that ping_group_range takes: GID_T_MAX (include/net/ping.h)
		m := attr.GidMappings[0]
		pingGroups = fmt.Sprintf("%d %d", m.ContainerID, min(m.ContainerID+m.Size-1, maxGroup))
	}
	return attr, pingGroups, nil
}

// mapIDs maps all ids to themselves if the process may, as root may. An ordinary user gets
// one user and one group id: the user's own, or with asRoot those of root.
func mapIDs(attr *syscall.SysProcAttr, asRoot bool) (err error) {
	if mayMapIDs() {
		if attr.UidMappings, err = identityMapping("/proc/self/uid_map"); err != nil {
			return err
		}
		if attr.GidMappings, err = identityMapping("/proc/self/gid_map"); err != nil {
			return err
		}
		attr.GidMappingsEnableSetgroups = setgroupsAllowed()
		return nil
	}
	uid, gid := os.Geteuid(), os.Getegid()
	insideUID, insideGID := uid, gid
	if asRoot {
		insideUID, insideGID = 0, 0
	}
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: insideUID, HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: insideGID, HostID: gid, Size: 1}}
	return nil
}

// mayMapIDs reports whether the process may map arbitrary ids.
func mayMapIDs() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return false
	}
	const both = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	return have[0].Effective&both == both
}

// setgroupsAllowed reports whether the process's user namespace allows supplementary groups
// (user_namespaces(7)). A namespace below it can't lift that restriction.
func setgroupsAllowed() bool {
	b, err := os.ReadFile("/proc/self/setgroups")
	return err != nil || strings.TrimSpace(string(b)) == "allow"
}

// identityMapping maps every id of the process's user namespace to itself.
func identityMapping(path string) ([]syscall.SysProcIDMap, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read own id mapping: %w", err)
	}
	var all []syscall.SysProcIDMap
	for line := range strings.Lines(string(b)) {
		var inside, outside, size int
		if _, err := fmt.Sscan(line, &inside, &outside, &size); err != nil {
			return nil, fmt.Errorf("read own id mapping from %s: line %q: %w", path, strings.TrimSpace(line), err)
		}
		all = append(all, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: size})
	}
	return all, nil
}

// basePlan returns what the plans for new and for joined namespaces have in common.
func (n *Network) basePlan() plan {
	c := &n.cfg
	p := plan{
		Interface: c.Interface, Device: c.Device, MAC: c.Ethernet.MAC, MTU: c.MTU, Queues: c.Queues, Addr4: c.Addr4, Addr6: c.Addr6, Gateway4: c.Gateway4, Gateway6: c.Gateway6,
		Configure: !c.NoConfigure, ReplaceTUN: c.ReplaceTUN, Need6: n.need6, Splice: c.useSplice(), Sockets: map[fdKind]int{},
	}
	p.addSockets(n.wantedSockets())
	if c.Addr6.IsValid() && p.Configure {
		// Nobody answers router solicitations, and the host may disable IPv6 by default.
		conf := "net/ipv6/conf/" + p.Interface + "/"
		p.Sysctls = [][2]string{{conf + "accept_ra", "0"}, {conf + "disable_ipv6", "0"}}
	}
	return p
}

// commandPlan returns the plan for a command in a new namespace.
func (n *Network) commandPlan(pingGroups string) plan {
	p := n.basePlan()
	p.ResolvConf = n.resolvConf
	if pingGroups != "" {
		p.Sysctls = append(p.Sysctls, [2]string{"net/ipv4/ping_group_range", pingGroups})
	}
	// All ports of the namespace are the command's own, the low ones too.
	p.Sysctls = append(p.Sysctls, [2]string{"net/ipv4/ip_unprivileged_port_start", "0"})
	return p
}

// Exec calls Wrap, cmd.Start, Run and cmd.Wait. The network ends with the command. If ctx
// ends first, the command is killed. The error is the network's, or else that of cmd.Wait.
func (n *Network) Exec(ctx context.Context, cmd *exec.Cmd) error {
	defer n.Close()
	if err := n.Wrap(cmd); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return StartError(err)
	}
	watched := *cmd.SysProcAttr.PidFD >= 0 // Run notices the end of the command itself
	running, stop := context.WithCancel(ctx)
	defer stop()
	runErr := make(chan error, 1)
	go func() {
		err := n.Run(running)
		if err != nil || ctx.Err() != nil {
			_ = cmd.Process.Kill() // fails if the command has ended
		}
		runErr <- err
	}()
	waitErr := cmd.Wait()
	if !watched {
		stop()
	}
	if err := <-runErr; err != nil {
		return err
	}
	return waitErr
}
