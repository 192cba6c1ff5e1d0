package attach

import (
	"slices"

	"cleat/cli/complete"
	"cleat/cli/container"
	"cleat/netns/find"
	"cleat/network/attach"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
)

func completeArgs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return container.Complete(cmd, func(f *find.Found) bool { return !f.Host }), cobra.ShellCompDirectiveDefault
	case 1:
		return attach.Kinds(), cobra.ShellCompDirectiveNoFileComp
	case 2:
		return completeParents(args[1]), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeParents returns the devices of the host that may be the PARENT of a kind.
func completeParents(kind string) []string {
	if what, _ := attach.Parent(kind); what == "" {
		return nil
	}
	all, err := netlink.LinkList()
	if err != nil {
		return nil
	}
	var names []string
	for _, l := range all {
		if l.Attrs().Name == "lo" || l.Attrs().MasterIndex != 0 || kind == "bridge" && l.Type() != "bridge" || kind == "ovs" && l.Type() != "openvswitch" {
			continue
		}
		names = append(names, l.Attrs().Name)
	}
	slices.Sort(names)
	return names
}

// WithCompletion registers the completion of the flags of `cleat attach`. It is not part of
// New, because the library keeps completions as long as the process lives: a keeper would
// accumulate them with each command that it executes.
func WithCompletion(cmd *cobra.Command) *cobra.Command {
	for _, name := range []string{"ip", "gw", "mac", "name", "mtu", "vlan", "route", "dns", "rate", "burst", "set"} {
		complete.Words(cmd, name)
	}
	complete.Words(cmd, "check-duplicate", attach.CheckFast, attach.CheckThorough, attach.CheckNone)
	complete.Flag(cmd, "mode", func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		kinds := attach.Kinds()
		if len(args) > 1 {
			kinds = args[1:2]
		}
		var all []string
		for _, k := range kinds {
			for _, m := range attach.Modes(k) {
				if !slices.Contains(all, m) {
					all = append(all, m)
				}
			}
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// completeAttachment completes a container that has attachments, as `cleat ls` names it, and
// the name of one of its links.
func completeAttachment(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	cfg, err := container.Config()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, _ := cfg.Store.Attachments()
	var words []string
	for _, a := range all {
		name, word := ContainerName(a, all), ""
		switch {
		case len(args) == 0:
			word = name
		case len(args) == 1 && slices.Contains([]string{name, a.Container.Name, a.Container.QualifiedName()}, args[0]):
			word = a.Spec.Name
		}
		if word != "" && !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return container.Pasteable(words), cobra.ShellCompDirectiveNoFileComp
}
