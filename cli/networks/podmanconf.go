package networks

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"cleat/cli/hint"
	"cleat/network/named"

	"github.com/spf13/cobra"
)

func newPodmanConf() *cobra.Command {
	return &cobra.Command{
		Use:                   "podman-conf NETWORK",
		DisableFlagsInUseLine: true,
		Short:                 "print a configuration for Podman whose netavark is cleat",
		Long: `Prints the definition of a network for Podman, which reads it from
/etc/containers/networks. Podman then connects its containers to the network of
the same name, if the netavark that it starts is cleat. Addresses are given by
the network, not by Podman.`,
		Example: `  # containers of Podman on network web
  cleat net podman-conf web | sudo tee /etc/containers/networks/web.json
  sudo podman run -d --name api --network web IMAGE`,
		ValidArgsFunction: completeNetworks,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return hint.With(hint.Usagef("want one network"), "`cleat net ls` lists them")
			}
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			n, err := (named.Store{Store: cfg.Attach.Store}).Network(args[0])
			if err != nil {
				return WithHint(err)
			}
			if n.Driver != named.Bridge && n.Driver != named.Routed {
				return hint.With(hint.Usagef("network %s is of driver %s, which Podman's containers can't join by netavark", n.Name, n.Driver),
					"`cleat net connect` connects a running container")
			}
			text, err := json.MarshalIndent(podmanNetwork(n), "", "  ")
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
			}
			return err
		},
	}
}

// podmanNetwork returns the definition of a network in Podman's form (libnetwork/types.Network of
// containers/container-libs). With the address management "none", Podman leaves the addresses to netavark.
func podmanNetwork(n *named.Network) any {
	type subnet struct {
		Subnet  netip.Prefix `json:"subnet"`
		Gateway netip.Addr   `json:"gateway"`
	}
	id := sha256.Sum256([]byte(n.Name))
	p := struct {
		Name        string            `json:"name"`
		ID          string            `json:"id"`
		Driver      string            `json:"driver"`
		Interface   string            `json:"network_interface"`
		Created     time.Time         `json:"created"`
		Subnets     []subnet          `json:"subnets"`
		IPv6        bool              `json:"ipv6_enabled"`
		Internal    bool              `json:"internal"`
		DNS         bool              `json:"dns_enabled"`
		IPAMOptions map[string]string `json:"ipam_options"`
	}{n.Name, hex.EncodeToString(id[:]), "bridge", n.Device(), n.Created, nil, false, n.Internal, true, map[string]string{"driver": "none"}}
	for _, s := range n.Subnets {
		p.Subnets = append(p.Subnets, subnet{s.Prefix, s.Gateway})
		p.IPv6 = p.IPv6 || s.Prefix.Addr().Is6()
	}
	return p
}
