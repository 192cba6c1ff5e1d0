package announce

import "golang.org/x/net/bpf"

// dropAll is the filter of a socket that only sends.
func dropAll() []bpf.Instruction { return []bpf.Instruction{bpf.RetConstant{Val: 0}} }

// neighbourDiscovery lets solicitations and advertisements pass that have no extension
// headers, which none has (RFC 4861 section 4).
func neighbourDiscovery() []bpf.Instruction {
	const (
		nextHeader = 6  // its offset in IPv6
		icmpv6     = 58 // its number
		icmpType   = 40 // the offset of ICMPv6's type behind IPv6's header
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
