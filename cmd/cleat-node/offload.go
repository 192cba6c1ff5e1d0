package main

import (
	"fmt"
	"strings"

	"cleat/network/span"
	"cleat/network/span/probe"
)

// assumeSoftware takes what an earlier node of this host has switched off on the VXLAN device.
func (d *dataplane) assumeSoftware() {
	if now, err := span.SoftwareNow(d.host); err == nil && now != (span.Software{}) { // Apply reports an error
		d.prober.Assume(probe.Offloads{Checksums: now.Checksums, Segments: now.Segments})
	}
}

// software returns what the kernel does itself for packets in VXLAN.
func (d *dataplane) software() span.Software {
	broken, _ := d.prober.Broken()
	return span.Software{Checksums: broken.Checksums, Segments: broken.Segments && !broken.Checksums}
}

// logNotes logs what is corrected, when that has changed.
func (d *dataplane) logNotes() {
	now := strings.Join(d.Notes(), "; ")
	d.mu.Lock()
	changed := now != d.notes
	d.notes = now
	d.mu.Unlock()
	switch {
	case changed && now != "":
		d.log("%s", now)
	case changed:
		d.log("the network card computes checksums and segments of packets in VXLAN again")
	}
}

// Notes implements overlay.Noter.
func (d *dataplane) Notes() (all []string) {
	broken, to := d.prober.Broken()
	what := map[bool]string{true: "checksums", false: "segments"}[broken.Checksums]
	if broken == (probe.Offloads{}) {
		return nil
	}
	seen := "as an earlier cleat-node has found"
	if to != "" {
		seen = "seen on the way to host " + to
	}
	return []string{fmt.Sprintf("%s of packets in VXLAN are computed in software, because this host's network card or its driver breaks them (%s)", what, seen)}
}
