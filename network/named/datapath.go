package named

import (
	"cmp"

	"cleat/fastpath"
)

// ChooseDatapath returns what forwards the packets of a network's containers, DatapathNft or DatapathBPF, and why. It
// returns "" if the host does not forward them.
func (s *NetworkSpec) ChooseDatapath() (use, why string) {
	want := cmp.Or(s.Datapath, DatapathAuto)
	if !s.OnHost() {
		return "", "the host does not forward its packets"
	}
	if want == DatapathNft {
		return DatapathNft, "as chosen"
	}
	if err := fastpath.Supported(); err != nil {
		return DatapathNft, err.Error()
	}
	if want == DatapathBPF {
		return DatapathBPF, "as chosen"
	}
	return DatapathBPF, "the kernel supports it"
}
