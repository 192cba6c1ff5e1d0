package link

// IFBSpec is an intermediate functional block: a device to which tc redirects
// incoming packets, so that they can be queued and shaped (drivers/net/ifb.c,
// CONFIG_IFB).
type IFBSpec struct {
	Attrs
}

// Kind implements Spec.
func (IFBSpec) Kind() string { return "ifb" }

// Validate implements Spec.
func (s IFBSpec) Validate() error { return validate("ifb", s.params()) }

func (s IFBSpec) create(m *creator) error {
	return m.newLink(request{kind: "ifb", attrs: s.Attrs}, noUnderlay)
}
