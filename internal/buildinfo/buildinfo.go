// Package buildinfo says which version of Cleat a program is.
package buildinfo

import "runtime/debug"

// Version returns the version that the build recorded, such as "v1.2.3".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "(unversioned build)"
	}
	return info.Main.Version
}
