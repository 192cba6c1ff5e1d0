package link

// IFBSpec is an intermediate functional block: a device to which tc redirects
// incoming traffic, so that it can be queued and shaped (drivers/net/ifb.c).
type IFBSpec struct {
	Attrs
}

// Kind implements Spec.
func (IFBSpec) Kind() string { return "ifb" }

// Validate implements Spec.
func (s IFBSpec) Validate() error { return checkValues("ifb", s.params()) }

func (s *IFBSpec) params() []field { return s.Attrs.params() }

func (s IFBSpec) create(m *creator) error {
	return m.newLink(request{kind: "ifb", attrs: s.Attrs}, noUnderlay)
}

func (IFBSpec) read(r *reader) (Spec, error) { return IFBSpec{r.info.attrs()}, nil }

// DummySpec is a device that throws away what it is given: something to hold an
// address, or to be a parent (drivers/net/dummy.c).
type DummySpec struct {
	Attrs
}

// Kind implements Spec.
func (DummySpec) Kind() string { return "dummy" }

// Validate implements Spec.
func (s DummySpec) Validate() error { return checkValues("dummy", s.params()) }

func (s *DummySpec) params() []field { return s.Attrs.params() }

func (s DummySpec) create(m *creator) error {
	return m.newLink(request{kind: "dummy", attrs: s.Attrs}, noUnderlay)
}

func (DummySpec) read(r *reader) (Spec, error) { return DummySpec{r.info.attrs()}, nil }
