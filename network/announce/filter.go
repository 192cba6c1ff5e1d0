package announce

import "golang.org/x/net/bpf"

// dropAll returns the filter of a socket that only sends.
func dropAll() []bpf.Instruction { return []bpf.Instruction{bpf.RetConstant{Val: 0}} }

// neighbourDiscovery returns a filter that passes solicitations and advertisements. They
// have no extension headers (RFC 4861 section 4).
func neighbourDiscovery() []bpf.Instruction {
	const (
		nextHeader = 6  // offset in the IPv6 header
		icmpv6     = 58 // protocol number
		icmpType   = 40 // offset of the ICMPv6 type
	)
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: nextHeader, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: icmpv6, SkipTrue: 4},
		bpf.LoadAbsolute{Off: icmpType, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: ndSolicitation, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: ndAdvertisement, SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	}
}
