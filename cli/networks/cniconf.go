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
	version := cniVersions[0]
	cmd := &cobra.Command{
		Use:                   "cni-conf NETWORK [FLAGS]",
		DisableFlagsInUseLine: true,
		Short:                 "print a configuration for CNI: containerd, CRI-O, nerdctl",
		Long: `Prints a list of CNI plug-ins that connects containers to a network. Runtimes
read it from /etc/cni/net.d, and start the plug-in cleat-cni, which must be in
their directory for plug-ins: /opt/cni/bin, or /usr/lib/cni on Debian.

Published ports, addresses, rates and aliases are taken from the runtime. STATUS
and GC need --cni-version 1.1.0, which older runtimes refuse.`,
		Example: `  # containers of nerdctl on network web
  sudo sh -c 'cleat net cni-conf web > /etc/cni/net.d/50-web.conflist'
  sudo nerdctl run -d --name api --network web -p 8080:80 IMAGE`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return hint.With(hint.Usagef("want one network"), "`cleat net ls` lists them")
			}
			if !slices.Contains(cniVersions, version) {
				return hint.With(hint.Usagef("--cni-version %s: no such version", version), "want one of "+strings.Join(cniVersions, ", "))
			}
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			if _, err := (named.Store{Store: cfg.Attach.Store}).Network(args[0]); err != nil {
				return WithHint(err)
			}
			text, err := cniConfiguration(args[0], version)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
			return err
		},
		ValidArgsFunction: completeNetworks,
	}
	cmd.Flags().StringVar(&version, "cni-version", version, "`VERSION` of the CNI specification: "+strings.Join(cniVersions, ", "))
	return cmd
}

// cniConfiguration returns a list of plug-ins (SPEC.md of CNI, section 1) that consists of cleat-cni.
func cniConfiguration(network, version string) ([]byte, error) {
	type plugin struct {
		Type         string          `json:"type"`
		Network      string          `json:"network"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	return json.MarshalIndent(struct {
		CNIVersion string   `json:"cniVersion"`
		Name       string   `json:"name"`
		Plugins    []plugin `json:"plugins"`
	}{version, network, []plugin{{"cleat-cni", network, map[string]bool{
		"portMappings": true, "ips": true, "mac": true, "bandwidth": true, "dns": true, "aliases": true,
	}}}}, "", "  ")
}
