package container

import (
	"strings"

	"cleat/internal/program"
)

// engineVariables are prefixes of variables by which users point their engines to another
// daemon or to other files.
var engineVariables = []string{"DOCKER_", "CONTAINER_", "CONTAINERS_", "PODMAN_", "APPTAINER_", "SINGULARITY_", "BUILDAH_", "STORAGE_", "XDG_", "NOTIFY_SOCKET", "LISTEN_"}

// environment returns arguments for env(1) that hide the user's configuration from an
// engine.
func environment(of []string, home string) []string {
	var args []string
	for _, kv := range of {
		name, _, _ := strings.Cut(kv, "=")
		for _, prefix := range engineVariables {
			if strings.HasPrefix(name, prefix) {
				args = append(args, "-u", name)
				break
			}
		}
	}
	return append(args, "HOME="+home, "APPTAINER_CONFIGDIR="+home+"/apptainer", "PATH="+program.SearchPath())
}
