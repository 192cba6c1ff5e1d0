package overlay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cleat/overlay/registry"
)

// Ways by which hosts reach each other's containers. A later one of two hosts' prevails between them.
const (
	// Auto is plain routes where they work, and VXLAN elsewhere.
	Auto = "auto"
	// Routes is plain routes only: hosts of one segment.
	Routes = "routes"
	// VXLAN is VXLAN only.
	VXLAN = "vxlan"
	// Geneve is Geneve only.
	Geneve = "geneve"
	// WireGuardWay is WireGuard only, which encrypts.
	WireGuardWay = "wireguard"
)

// planes are the ways in ascending order.
var planes = []string{Auto, Routes, VXLAN, Geneve, WireGuardWay}

// Ways returns the ways.
func Ways() []string { return slices.Clone(planes) }

// Dataplanes returns the ways in words.
func Dataplanes() string {
	last := len(planes) - 1
	return strings.Join(planes[:last], ", ") + " or " + planes[last]
}

// An UnknownDataplaneError means that hosts can't reach each other in a way: there is none with that name, or it
// needs a later version.
type UnknownDataplaneError struct{ Name string }

func (e *UnknownDataplaneError) Error() string {
	return fmt.Sprintf("no dataplane %q; want %s", e.Name, Dataplanes())
}

// CheckDataplane returns an *UnknownDataplaneError unless a way is known. "" is the default.
func CheckDataplane(name string) error {
	if name != "" && !slices.Contains(planes, name) {
		return &UnknownDataplaneError{name}
	}
	return nil
}

// A ContradictionError means that a way does not encrypt, in a cluster that does.
type ContradictionError struct{ Name string }

func (e *ContradictionError) Error() string {
	return fmt.Sprintf("dataplane %s does not encrypt, and everything between hosts is to be encrypted", e.Name)
}

// CheckEncrypted returns a *ContradictionError unless hosts that choose a way can be in a cluster that encrypts. With ""
// and auto they leave it to the cluster.
func CheckEncrypted(name string) error {
	if name == "" || name == Auto || name == WireGuardWay {
		return nil
	}
	return &ContradictionError{name}
}

// Between returns the way by which this host and another one reach each other's containers. Both hosts come to the
// same one. The error is an *UnknownDataplaneError.
func (s State) Between(other registry.Host) (string, error) {
	if s.Encrypted {
		return WireGuardWay, nil // whatever was chosen
	}
	own, its := cmp.Or(s.Self.Dataplane, s.Default, Auto), cmp.Or(other.Dataplane, s.Default, Auto)
	for _, name := range []string{own, its} {
		if err := CheckDataplane(name); err != nil {
			return "", err
		}
	}
	return planes[max(slices.Index(planes, own), slices.Index(planes, its))], nil
}
