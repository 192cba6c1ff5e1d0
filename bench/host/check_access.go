package host

var accessChecks = []check{
	{"userns", checkUserNamespaces},
	{"tun", checkTUN},
	{"ping", checkPing},
}

// checkUserNamespaces names the setting that forbids user namespaces, the most specific one first.
func checkUserNamespaces(h Host) []Finding {
	u := h.UserNamespaces
	f := Finding{Severity: Warning, Spoils: SpoilsBoth,
		Detail: "Without them and without root, rootless containers, `cleat run` and the user lab of `cleat bench` can't work."}
	if h.UID != 0 {
		f.Severity = Problem
	}
	switch {
	case !u.Supported:
		f.Title = "the kernel has no user namespaces (CONFIG_USER_NS)"
	case u.UnprivilegedOK == "0":
		f.Title, f.Fix = "unprivileged users may not create user namespaces (sysctl kernel.unprivileged_userns_clone is 0)", "sudo sysctl kernel.unprivileged_userns_clone=1"
	case u.Max == "0":
		f.Title, f.Fix = "nobody may create user namespaces (sysctl user.max_user_namespaces is 0)", "sudo sysctl user.max_user_namespaces=63000"
	case u.MaxNet == "0":
		f.Title, f.Fix = "nobody may create network namespaces (sysctl user.max_net_namespaces is 0)", "sudo sysctl user.max_net_namespaces=63000"
	case u.AppArmorRestrict == "1":
		f.Title, f.Fix = "AppArmor denies capabilities in unprivileged user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns is 1)", "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
		f.Detail += " Programs whose AppArmor profile allows userns are exempt."
	case u.Refused != "" && u.Seccomp:
		f.Title = "user namespaces are refused (" + u.Refused + "), most likely by the seccomp filter of this process"
		f.Fix = "docker run --security-opt seccomp=unconfined --cap-add SYS_ADMIN …"
	case u.Refused != "":
		f.Title, f.Fix = "user namespaces are refused: "+u.Refused, "sudo cleat doctor"
		f.Detail += " No known setting explains it; a security module or a chroot may."
	default:
		return fine("unprivileged users may create user namespaces")
	}
	return one(f)
}

func checkTUN(h Host) []Finding {
	switch {
	case !h.TUN.Present:
		return one(Finding{Severity: Warning, Spoils: SpoilsNetwork, Title: "/dev/net/tun is missing",
			Detail: "TUN and TAP devices, pasta, slirp4netns, OpenVPN and user-mode WireGuard can't work.",
			Fix:    "sudo modprobe tun || sudo sh -c 'mkdir -p /dev/net && mknod -m 0666 /dev/net/tun c 10 200'"})
	case !h.TUN.Usable:
		return one(Finding{Severity: Warning, Spoils: SpoilsNetwork, Title: "/dev/net/tun can't be opened (mode " + h.TUN.Mode + ")",
			Detail: "User-mode networks (pasta, slirp4netns) need it. Mode 0666 is usual: creating a device takes CAP_NET_ADMIN in the network namespace in any case.",
			Fix:    "sudo chmod 0666 /dev/net/tun"})
	}
	return fine("/dev/net/tun can be opened")
}

func checkPing(h Host) []Finding {
	if h.Sysctls["net.ipv4.ping_group_range"] != "1 0" { // the kernel's default: nobody
		return nil
	}
	return one(Finding{Severity: Note, Spoils: SpoilsNetwork, Title: "unprivileged users may not ping",
		Detail: "User-mode networks can't forward ICMP echo: ping fails in rootless containers while everything else works.",
		Fix:    "sudo sysctl net.ipv4.ping_group_range='0 2147483647'"})
}
