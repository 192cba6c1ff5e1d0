package container

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// engineVariables begin the names of variables by which users steer their
// engines: to another daemon, to other files.
var engineVariables = []string{"DOCKER_", "CONTAINER_", "CONTAINERS_", "PODMAN_", "APPTAINER_", "SINGULARITY_", "BUILDAH_", "STORAGE_", "XDG_", "NOTIFY_SOCKET", "LISTEN_"}

// systemPaths are where Debian keeps daemons, which a user's PATH may lack.
const systemPaths = "/usr/local/sbin:/usr/sbin:/sbin"

// environment is the arguments for env(1) that make an engine forget who calls.
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
	return append(args, "HOME="+home, "APPTAINER_CONFIGDIR="+home+"/apptainer", "PATH="+searchPath())
}

func searchPath() string { return os.Getenv("PATH") + ":" + systemPaths }

// look finds a program on the PATH or where daemons are.
func look(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	for dir := range strings.SplitSeq(systemPaths, ":") {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("find %s: %w", program, exec.ErrNotFound)
}
