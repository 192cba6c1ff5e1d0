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

// self is this program, whatever happened to its file.
const self = "/proc/self/exe"

// insideCaps are what the inside needs over its new namespaces: the device,
// addresses and sysctls; the mount over resolv.conf.
var insideCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}

// Wrap changes cmd, which has not been started, so that it runs with the
// network: in new user, network and mount namespaces, as any program. Main must
// call Init first thing, since this program is run again to prepare the
// namespaces. cmd's Path, Env, ExtraFiles and SysProcAttr change; its
// SysProcAttr.Chroot can't be used. Start cmd, then call Run: the command begins
// when its network is there. Where Start fails, StartError explains it.
func (n *Network) Wrap(cmd *exec.Cmd) error {
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Chroot != "" {
		return fmt.Errorf("give %s a network: SysProcAttr.Chroot is set, and this program is not in there: use Attach", cmd.Path)
	}
	attr, groups, err := namespaces(cmd, n.cfg.MapRoot)
	if err != nil {
		return err
	}
	attr.Cloneflags |= unix.CLONE_NEWNS
	attr.AmbientCaps = union(attr.AmbientCaps, insideCaps)
	p := n.plan(groups)
	n.planSupervisor(&p)
	p.Mount = p.ResolvConf != nil && !n.cfg.DNS.KeepResolvConf
	p.Exec = cmd.Path
	if err := n.begin(cmd, attr, roleWrap, p); err != nil {
		return err
	}
	if cmd.Err == nil {
		cmd.Path = self
	}
	return nil
}

// Attach prepares cmd, which has not been started and whose program calls Open,
// for the network: it appends one file to cmd.ExtraFiles after the caller's own,
// tells the child about it by an environment variable, and adds new user and
// network namespaces with their id mappings (the child is root in there) to
// cmd.SysProcAttr unless the caller has set some. Start cmd, then call Run.
// Where Start fails, StartError explains it.
func (n *Network) Attach(cmd *exec.Cmd) error {
	if err := n.unsupervised(); err != nil {
		return err
	}
	attr, groups, err := namespaces(cmd, true)
	if err != nil {
		return err
	}
	return n.begin(cmd, attr, roleAttach, n.plan(groups))
}

// begin ties cmd to the network.
func (n *Network) begin(cmd *exec.Cmd, attr *syscall.SysProcAttr, role string, p plan) error {
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
	cmd.Env = append(slices.DeleteFunc(cmd.Environ(), func(kv string) bool { return strings.HasPrefix(kv, environ+"=") }),
		environ+"="+role+":"+strconv.Itoa(3+len(cmd.ExtraFiles)))
	cmd.ExtraFiles = append(slices.Clip(cmd.ExtraFiles), theirs)
	n.state, n.cmd, n.channel, n.theirs = stateBound, cmd, ours, theirs
	return nil
}

// namespaces is cmd's SysProcAttr with new namespaces, and the range of group
// ids in there that may send pings. root makes an ordinary user root in there.
func namespaces(cmd *exec.Cmd, root bool) (attr *syscall.SysProcAttr, groups string, err error) {
	attr = &syscall.SysProcAttr{}
	if cmd.SysProcAttr != nil {
		*attr = *cmd.SysProcAttr
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_NEWNET
	if attr.UidMappings == nil && attr.GidMappings == nil {
		if err := mapIDs(attr, root); err != nil {
			return nil, "", err
		}
	}
	if len(attr.GidMappings) > 0 {
		m := attr.GidMappings[0]
		groups = fmt.Sprintf("%d %d", m.ContainerID, min(m.ContainerID+m.Size-1, maxGroup))
	}
	return attr, groups, nil
}

// maxGroup is the highest group id that ping_group_range takes (GID_T_MAX,
// include/net/ping.h).
const maxGroup = 1<<31 - 1

// mapIDs makes the ids inside the same as outside where we may, as root; an
// ordinary user has one of each, its own or root's.
func mapIDs(attr *syscall.SysProcAttr, root bool) error {
	if privileged() {
		var err error
		if attr.UidMappings, err = identity("/proc/self/uid_map"); err != nil {
			return err
		}
		if attr.GidMappings, err = identity("/proc/self/gid_map"); err != nil {
			return err
		}
		attr.GidMappingsEnableSetgroups = setgroupsAllowed()
		return nil
	}
	uid, gid := os.Geteuid(), os.Getegid()
	inner, innerGroup := uid, gid
	if root {
		inner, innerGroup = 0, 0
	}
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: inner, HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: innerGroup, HostID: gid, Size: 1}}
	return nil
}

// privileged tells whether we may map any ids.
func privileged() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return false
	}
	const both = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	return have[0].Effective&both == both
}

// setgroupsAllowed tells whether our own user namespace lets anybody have
// supplementary groups (user_namespaces(7)); one inside it can't lift that.
func setgroupsAllowed() bool {
	b, err := os.ReadFile("/proc/self/setgroups")
	return err != nil || strings.TrimSpace(string(b)) == "allow"
}

// identity maps every id that our own user namespace has to itself.
func identity(path string) ([]syscall.SysProcIDMap, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read own ids: %w", err)
	}
	var all []syscall.SysProcIDMap
	for line := range strings.Lines(string(b)) {
		var inside, outside, size int
		if _, err := fmt.Sscan(line, &inside, &outside, &size); err != nil {
			return nil, fmt.Errorf("read own ids from %s: line %q: %w", path, strings.TrimSpace(line), err)
		}
		all = append(all, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: size})
	}
	return all, nil
}

func union(a, b []uintptr) []uintptr {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// plan is what the inside of a new namespace is to do.
func (n *Network) plan(pingGroups string) plan {
	c := &n.cfg
	p := plan{
		Interface: c.Interface, MTU: c.MTU, Queues: c.Queues, Addr4: c.Addr4, Addr6: c.Addr6, Gateway4: c.Gateway4, Gateway6: c.Gateway6,
		Configure: !c.NoConfigure, Replace: c.ReplaceTUN, Need6: n.need6, ResolvConf: n.resolvConf,
		Sockets: n.wantedSockets(), Diagnose: len(c.AutoForward) > 0, Splice: c.splices(),
	}
	if pingGroups != "" {
		p.Sysctls = append(p.Sysctls, [2]string{"net/ipv4/ping_group_range", pingGroups})
	}
	// The namespace is the command's own: no port in it is anybody else's.
	p.Sysctls = append(p.Sysctls, [2]string{"net/ipv4/ip_unprivileged_port_start", "0"})
	return p.withIPv6()
}

// withIPv6 sets what only IPv6 needs: nobody advertises routers, so asking for
// them would be noise; and IPv6 may be off by default on the host.
func (p plan) withIPv6() plan {
	if p.Addr6.IsValid() && p.Configure {
		conf := "net/ipv6/conf/" + p.Interface + "/"
		p.Sysctls = append(p.Sysctls, [2]string{conf + "accept_ra", "0"}, [2]string{conf + "disable_ipv6", "0"})
	}
	return p
}

// Exec is Wrap, cmd.Start, Run and cmd.Wait in one. The network ends with the
// command; when ctx ends first, the command is killed. The error is that of the
// network, or else that of cmd.Wait.
func (n *Network) Exec(ctx context.Context, cmd *exec.Cmd) error {
	defer n.Close()
	if err := n.Wrap(cmd); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return StartError(err)
	}
	seen := *cmd.SysProcAttr.PidFD >= 0 // Run sees the end of the command by itself
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		err := n.Run(running)
		if err != nil || ctx.Err() != nil {
			_ = cmd.Process.Kill() // it may have ended by itself
		}
		ended <- err
	}()
	waited := cmd.Wait()
	if !seen {
		stop()
	}
	if err := <-ended; err != nil {
		return err
	}
	return waited
}
