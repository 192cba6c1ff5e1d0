package guard

// Known reports whether the next Sync can do without listing the kernel's tables if nobody changes rules until then.
func (t *Tables) Known() bool { return t.generation != 0 }
