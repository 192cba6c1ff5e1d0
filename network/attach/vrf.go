package attach

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// InVRF puts a bridge that cleat has created into a VRF of the host (drivers/net/vrf.c). Others stay where
// they are.
type InVRF struct {
	Bridge string `json:"bridge"`
	VRF    string `json:"vrf"`
}

func (s InVRF) String() string { return fmt.Sprintf("put bridge %s into VRF %s", s.Bridge, s.VRF) }

func (s InVRF) do(r *run) error { return r.use(s) }

func (s InVRF) key() string { return "vrf of " + s.Bridge }

func (s InVRF) exists(r *run) (bool, error) {
	br, err := r.host.find(s.Bridge)
	if br == nil {
		return false, err
	}
	if own, err := r.hasMade(UseBridge{Name: s.Bridge}); !own {
		return err == nil, err
	}
	vrf, err := r.host.find(s.VRF)
	return vrf != nil && br.Attrs().MasterIndex == vrf.Attrs().Index, err
}

// create records nothing: the bridge takes its membership along. The kernel removes the bridge's IPv6
// addresses (cycle_netdev), which the steps that follow restore.
func (s InVRF) create(r *run, _ func(Undo) error) error {
	if own, err := r.hasMade(UseBridge{Name: s.Bridge}); !own {
		return err
	}
	br, err := r.host.mustFind(s.Bridge)
	if err != nil {
		return err
	}
	vrf, err := r.host.vrf(s.VRF)
	if err != nil {
		return err
	}
	return r.host.LinkSetMasterByIndex(br, vrf.Index)
}

// hasMade reports whether a bridge that is in use was created for its users.
func (r *run) hasMade(bridge UseBridge) (bool, error) {
	made, err := readJournal(r.store.sharedDir(r.sharedKey(bridge)) + "/made")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	for _, u := range made.undos {
		if u.Bridge != nil {
			return true, err
		}
	}
	return false, err
}

// vrf returns a VRF. The error is a *SpecError if there is none of this name.
func (n *namespace) vrf(name string) (*netlink.Vrf, error) {
	l, err := n.find(name)
	if err != nil {
		return nil, err
	}
	bad := &SpecError{Param: "vrf", Value: name, Reason: "the host has no such device"}
	if l == nil {
		return nil, bad
	}
	v, ok := l.(*netlink.Vrf)
	if !ok {
		bad.Reason = "is not a VRF, but of kind " + l.Type()
		return nil, bad
	}
	return v, nil
}

// tableOf returns the routing table of a VRF, or the main one if there is none.
func (n *namespace) tableOf(vrf string) int {
	if vrf != "" {
		if v, err := n.vrf(vrf); err == nil {
			return int(v.Table)
		}
	}
	return unix.RT_TABLE_MAIN
}
