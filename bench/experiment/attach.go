package experiment

import (
	"strconv"

	"cleat/bench/catalog"
)

// The further factors of "attach", as they stand in a Cell.
const (
	linkFactor      = "link"      // what kind of link the container is given
	endpointsFactor = "endpoints" // how many the bridge, or the parent, has with the one that is measured
)

// attachedLinks are the kinds of link that everything that attaches can make.
var attachedLinks = []string{"bridge", "macvlan"}

// maxEndpoints is how many ports a Linux bridge can have (BR_PORT_BITS in
// net/bridge/br_private.h: 10, and port 0 is none).
const maxEndpoints = 1023

// dockerConnect is the network of the catalogue whose containers are an engine's.
const dockerConnect = "docker-connect"

func isAttach(k kind, _ catalog.Entry) bool { return k.name == Attach }

func checkEndpoints(level string) *Error {
	if n, err := strconv.Atoi(level); err != nil || n < 1 || n > maxEndpoints {
		return wrong("", "endpoints %q: want 1…%d", level, maxEndpoints)
	}
	return nil
}

// impossibleAttach says why what attaches can't do this work, or this work what
// does not attach.
func impossibleAttach(work string) string {
	if work == Attach {
		return "it is a network, and not what gives a container one: attach does not apply"
	}
	return "it gives containers links, and carries no traffic: only attach is measured"
}
