package cni

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"cleat/netns/find"
	"cleat/network/attach"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// identify returns the container that the call is about, with the name that its engine has for it, and
// further names.
func (c *call) identify() (container attach.Container, also []string) {
	container = attach.Container{Manager: Manager, Key: c.containerID, ID: c.containerID, Engine: attach.EngineCNI, Name: c.containerID, Path: c.netns}
	pod, space := c.args["K8S_POD_NAME"], c.args["K8S_POD_NAMESPACE"]
	switch {
	case pod != "" && pod == space && c.args["K8S_POD_UID"] == "": // Podman sends its container's name as both
		container.Engine, container.Name = find.Podman, pod
	case pod != "":
		container.Engine, container.Name = attach.EnginePod, pod
		if space != "" {
			container.Name = space + "/" + pod
			also = append(also, pod+"."+space)
		}
	default:
		also = c.identifyTask(&container)
	}
	return container, also
}

// tasks has a directory for each namespace of containerd, with one for each task (runtime v2).
const tasks = "/run/containerd/io.containerd.runtime.v2.task"

// identifyTask names a container of nerdctl, whose CNI_CONTAINERID is "NAMESPACE-ID", by its OCI bundle. It
// returns the name of its service, if it has one.
func (c *call) identifyTask(container *attach.Container) (also []string) {
	spaces, _ := os.ReadDir(tasks) // none without containerd
	for _, space := range spaces {
		id, ok := strings.CutPrefix(c.containerID, space.Name()+"-")
		if !ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join(tasks, space.Name(), id, "config.json"))
		var bundle specs.Spec
		if err != nil || json.Unmarshal(text, &bundle) != nil {
			continue
		}
		container.Engine, container.ID, container.Name = find.Containerd, id, space.Name()+"/"+id
		if name := bundle.Annotations["nerdctl/name"]; name != "" {
			container.Name = space.Name() + "/" + name
		}
		for _, m := range bundle.Mounts {
			if m.Destination == "/etc/resolv.conf" && m.Type == "bind" {
				container.ResolvConfFile = m.Source
			}
		}
		if service := bundle.Annotations["com.docker.compose.service"]; service != "" {
			also = append(also, service)
		}
		return also
	}
	return nil
}
