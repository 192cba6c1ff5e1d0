package wiring

import (
	"cleat/bench/container"
	"cleat/lab"
)

// in is where a program runs that has a node's network: in a container of the
// site's runtime, or on the node where that is native. A builder that starts the
// network's own programs there sets nativeEnds.
func (nw *Network) in(n *lab.Node, o container.Options) lab.Runner {
	return nw.cfg.ContainerRuntime.On(n, o)
}

// containEnds puts the ends of all pairs into containers, each with the network
// of the node it ran on.
func (nw *Network) containEnds() error {
	if nw.cfg.ContainerRuntime == nil || nw.nativeEnds {
		return nil
	}
	for i := range nw.Pairs {
		for _, end := range []*lab.Runner{&nw.Pairs[i].Client, &nw.Pairs[i].Server} {
			switch n := (*end).(type) {
			case *lab.Node:
				*end = nw.in(n, container.Options{})
			case lab.Host:
				return &NotApplicable{Why: "its ends are the host's own programs, in no container"}
			default:
				return &NotApplicable{Why: "its ends run in containers of its own"}
			}
		}
	}
	return nil
}
