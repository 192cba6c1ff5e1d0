package control

import (
	"context"
	"net/http"
	"net/netip"
	"time"
)

// Picture is what a node knows, and what the other hosts report to it.
type Picture struct {
	Status
	At         time.Time                            `json:"at"`
	Started    map[string]time.Time                 `json:"started,omitempty"` // since when the nodes of alive hosts run
	Blocks     map[string]map[string][]netip.Prefix `json:"blocks"`            // by network and host
	Containers []Container                          `json:"containers"`
	Reports    map[string]Report                    `json:"reports"` // by host
	Talks      []Talk                               `json:"talks"`   // those with most traffic first
}

// Container is a container on a network.
type Container struct {
	Network   string       `json:"network"`
	Host      string       `json:"host"`
	ID        string       `json:"id"`
	Container string       `json:"container"` // e.g. "docker:api"
	Names     []string     `json:"names"`
	Addresses []netip.Addr `json:"addresses"`
	Ports     []string     `json:"ports,omitempty"` // published ones, e.g. "8080 → 80/tcp"
}

// Report is what a host says of itself. A host that does not answer has Error, and its last report is kept.
type Report struct {
	At       time.Time `json:"at,omitzero"` // when it was asked last with an answer
	Error    string    `json:"error,omitempty"`
	Since    time.Time `json:"since,omitzero"` // when it stopped to answer
	Registry bool      `json:"registry"`       // whether the registry answers that host
	Problems []Problem `json:"problems,omitempty"`
	Traffic  *Traffic  `json:"traffic,omitempty"`
}

// Problem is something that does not work.
type Problem struct {
	Text  string    `json:"text"`
	Since time.Time `json:"since"`
}

// Traffic is what a host has measured. Its counters only grow while the host's node runs.
type Traffic struct {
	At      time.Time `json:"at"`
	Counted bool      `json:"counted"`           // whether the kernel counts the bytes of new connections
	Links   []Link    `json:"links"`             // of containers
	Between *Counters `json:"between,omitempty"` // of the device to all other hosts; nil: there is none
	Flows   []Flow    `json:"flows,omitempty"`
	Left    int       `json:"left,omitempty"` // flows that were left out
}

// Counters are those of a link, as what it leads to sees them.
type Counters struct {
	Received        uint64 `json:"received"` // bytes
	Sent            uint64 `json:"sent"`
	ReceivedPackets uint64 `json:"received_packets"`
	SentPackets     uint64 `json:"sent_packets"`
}

// Link is the link of a container to a network.
type Link struct {
	Network string `json:"network"`
	ID      string `json:"id"` // of the container
	Counters
}

// Flow is the connections between two addresses to one port. An address outside all networks is not valid.
type Flow struct {
	From     netip.Addr `json:"from"` // the client
	To       netip.Addr `json:"to"`
	Protocol string     `json:"protocol"` // e.g. "tcp"
	Port     uint16     `json:"port,omitempty"`
	Volume
}

// Volume is how much a flow has.
type Volume struct {
	Connections int    `json:"connections"` // now
	Counted     int    `json:"counted"`     // those of them whose bytes the kernel counts
	Requests    uint64 `json:"requests"`    // bytes from the client, as far as they are counted
	Answers     uint64 `json:"answers"`     // bytes to the client
	Packets     uint64 `json:"packets"`     // both ways
}

// Talk is a flow with the names of its ends.
type Talk struct {
	From     End    `json:"from"` // the client
	To       End    `json:"to"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port,omitempty"`
	Volume
	By string `json:"by"` // the host that has measured
}

// End is an end of a Talk: a container; a host, which has no ID; or something outside, which has no host.
type End struct {
	Network string `json:"network,omitempty"`
	Host    string `json:"host,omitempty"`
	ID      string `json:"id,omitempty"`
}

// Picture returns what the node knows and what the other hosts report. Only this host reports if own is set.
func (c *Client) Picture(ctx context.Context, own bool) (p Picture, err error) {
	path := "/picture"
	if own {
		path += "?own=1"
	}
	return p, c.Do(ctx, http.MethodGet, path, nil, &p)
}
