package link

// ParamNames are the parameters that Parse knows for a kind.
func ParamNames(kind string) []string {
	k, _ := findKind(kind)
	var names []string
	for _, f := range k.defaults() {
		if f.name != "" {
			names = append(names, f.name)
		}
	}
	return names
}
