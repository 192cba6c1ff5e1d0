// Command firewall runs a program that may reach only the listed names and networks, and logs
// what else it tries to reach:
//
//	firewall example.com,192.0.2.0/24 curl https://example.com
//
// Names are written in lower case, without the final dot.
//
// Package cleat/policy provides a Policy with rules in a file, with ports and protocols.
package main

import (
	"context"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"cleat/sandbox"
)

// firewall is a sandbox.NamePolicy that allows flows to names and networks.
type firewall struct {
	names    []string
	networks []netip.Prefix
}

func newFirewall(list string) firewall {
	var f firewall
	for item := range strings.SplitSeq(list, ",") {
		if network, err := netip.ParsePrefix(item); err == nil {
			f.networks = append(f.networks, network)
		} else {
			f.names = append(f.names, item)
		}
	}
	return f
}

// Judge implements sandbox.Policy.
func (f firewall) Judge(flow sandbox.Flow) sandbox.Verdict { return f.JudgeNamed(flow, nil) }

// JudgeNamed implements sandbox.NamePolicy. The names are those that the program looked up to
// find the address. It can't forge them, since it uses the network's resolver.
func (f firewall) JudgeNamed(flow sandbox.Flow, names []string) sandbox.Verdict {
	listed := func(n netip.Prefix) bool { return n.Contains(flow.Destination.Addr()) }
	named := func(name string) bool { return slices.Contains(f.names, name) }
	if flow.Inbound || slices.ContainsFunc(f.networks, listed) || slices.ContainsFunc(names, named) {
		return sandbox.Verdict{Action: sandbox.Allow}
	}
	log.Printf("refused: %s to %s %v", flow.Protocol, flow.Destination, names)
	return sandbox.Verdict{Action: sandbox.Refuse}
}

func main() {
	sandbox.Init()
	if len(os.Args) < 3 {
		log.Fatal("usage: firewall NAME|CIDR[,…] COMMAND [ARG…]")
	}
	network, err := sandbox.New(sandbox.Config{Policy: newFirewall(os.Args[1])})
	if err != nil {
		log.Fatal(err)
	}
	cmd := exec.Command(os.Args[2], os.Args[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := network.Exec(context.Background(), cmd); err != nil {
		log.Fatal(err)
	}
}
