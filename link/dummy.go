package link

// DummySpec is a device that discards what is sent through it. It holds
// addresses or serves as a parent (drivers/net/dummy.c, CONFIG_DUMMY).
type DummySpec struct {
	Attrs
}

// Kind implements Spec.
func (DummySpec) Kind() string { return "dummy" }

// Validate implements Spec.
func (s DummySpec) Validate() error { return validate("dummy", s.params()) }

func (s DummySpec) create(m *creator) error {
	return m.newLink(request{kind: "dummy", attrs: s.Attrs}, noUnderlay)
}
