package networks

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"cleat/cli/hint"
	"cleat/network/named"

	"github.com/spf13/cobra"
)

// cniVersions are those that a configuration may have. The first is the default: containerd 1.6 and 1.7
// and Podman 4 refuse later ones.
var cniVersions = []string{"1.0.0", "1.1.0", "0.4.0"}

func newCNIConf() *cobra.Command {
	version, create := cniVersions[0], false
	cmd := &cobra.Command{
		Use:                   "cni-conf NETWORK [FLAGS]",
		DisableFlagsInUseLine: true,
		Short:                 "print a configuration for CNI: containerd, CRI-O, nerdctl",
		Long: `Prints a list of CNI plug-ins that connects containers to a network. Runtimes
read it from /etc/cni/net.d, and start the plug-in cleat-cni, which must be in
their directory for plug-ins: /opt/cni/bin, or /usr/lib/cni on Debian. With
--create the first container creates the network if there is none: a bridge with
a free subnet.

Published ports, addresses, rates and aliases are taken from the runtime. STATUS
and GC need --cni-version 1.1.0, which older runtimes refuse.`,
		Example: `  # containers of nerdctl on network web
  sudo sh -c 'cleat net cni-conf web > /etc/cni/net.d/50-web.conflist'
  sudo nerdctl run -d --name api --network web -p 8080:80 IMAGE

  # as root: pods on a network that the first one creates
  cleat net cni-conf pods --create > /etc/cni/net.d/10-pods.conflist`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return hint.With(hint.Usagef("want one network"), "`cleat net ls` lists them")
			}
			if !slices.Contains(cniVersions, version) {
				return hint.With(hint.Usagef("--cni-version %s: no such version", version), "want one of "+strings.Join(cniVersions, ", "))
			}
			check := checkExists
			if create {
				check = func(_ *cobra.Command, name string) error { return named.CheckName(name) }
			}
			if err := check(cmd, args[0]); err != nil {
				return WithHint(err)
			}
			text, err := cniConfiguration(args[0], version, create)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
			return err
		},
		ValidArgsFunction: completeNetworks,
	}
	cmd.Flags().StringVar(&version, "cni-version", version, "`VERSION` of the CNI specification: "+strings.Join(cniVersions, ", "))
	cmd.Flags().BoolVar(&create, "create", false, "have the first container create the network if there is none")
	return cmd
}

func checkExists(cmd *cobra.Command, network string) error {
	cfg, err := config(cmd)
	if err != nil {
		return err
	}
	_, err = named.Store{Store: cfg.Attach.Store}.Network(network)
	return err
}

// cniConfiguration returns a list of plug-ins (SPEC.md of CNI, section 1) that consists of cleat-cni.
// create lets it create the network.
func cniConfiguration(network, version string, create bool) ([]byte, error) {
	type plugin struct {
		Type         string          `json:"type"`
		Network      string          `json:"network"`
		Create       *struct{}       `json:"create,omitempty"` // the defaults of `cleat net create`
		Capabilities map[string]bool `json:"capabilities"`
	}
	one := plugin{Type: "cleat-cni", Network: network, Capabilities: map[string]bool{
		"portMappings": true, "ips": true, "mac": true, "bandwidth": true, "dns": true, "aliases": true,
	}}
	if create {
		one.Create = &struct{}{}
	}
	return json.MarshalIndent(struct {
		CNIVersion string   `json:"cniVersion"`
		Name       string   `json:"name"`
		Plugins    []plugin `json:"plugins"`
	}{version, network, []plugin{one}}, "", "  ")
}
