package span

// SetKind makes Sync know the device with a name of this package's as one of another kind, but not how to read it.
func SetKind(name, kind string) (restore func()) {
	before := devices[name]
	devices[name] = kind
	return func() { devices[name] = before }
}
