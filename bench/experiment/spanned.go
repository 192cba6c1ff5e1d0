package experiment

import (
	"fmt"
	"strconv"

	"cleat/bench/catalog"
)

// Why a network's design rules an event out.
const (
	blocksOfHosts = "each host has addresses of its own, so that a container can't keep its address on another host"
	keepsAddress  = "its program keeps the address with which it was started"
)

// lackedEvents has, for each network that spans hosts, why it has not all events.
var lackedEvents = map[string]map[string]string{
	"flannel-vxlan":   flannelLacks,
	"flannel-host-gw": flannelLacks,
	dockerOverlay:     {eventAddress: keepsAddress},
	"weave": {
		eventName:    "it serves names of Docker's containers only",
		eventDeath:   "weaver misses a peer after a minute of lost heartbeats",
		eventMove:    "its CNI plug-in chooses the address",
		eventAddress: keepsAddress,
	},
	"bird-routes": {
		eventName:    "it serves no names",
		eventDeath:   "BIRD's hold time is four minutes",
		eventMove:    blocksOfHosts,
		eventAddress: keepsAddress,
	},
}

var flannelLacks = map[string]string{
	eventName:    "flannel serves no names",
	eventDeath:   "flannel does not notice that a host is gone: its lease lasts a day",
	eventMove:    blocksOfHosts,
	eventAddress: keepsAddress,
}

// whyImpossibleSpanned is whyImpossible for a network that spans hosts.
func whyImpossibleSpanned(j Job, n catalog.Entry, k kind) string {
	endpoints, _ := strconv.Atoi(j.Cell.Factors[endpointsFactor]) // Validate has parsed it
	switch {
	case n.Cluster && k.name == Setup:
		return "setup does not apply: the event join measures how long a host takes"
	case n.Cluster && k.name == Attach && j.Cell.Topology == "switched":
		return "topology switched does not apply to attach: it has two hosts of its own"
	case n.Name == dockerOverlay && endpoints > mostOfDocker:
		return fmt.Sprintf("at most %d endpoints are measured: each takes a container of Docker's", mostOfDocker)
	case k.name == Event:
		return lackedEvents[n.Name][j.Cell.Factors[eventFactor]]
	}
	return ""
}
