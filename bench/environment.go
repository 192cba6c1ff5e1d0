package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/internal/columns"
	"cleat/lab"
	"cleat/link"
)

// Environment is environment.json: everything besides the samples that changes a
// result.
type Environment struct {
	Preset      string                  `json:"preset"`
	Title       string                  `json:"title"`
	Hostname    string                  `json:"hostname,omitempty"`
	Description string                  `json:"description,omitempty"`
	Command     []string                `json:"command"`
	Version     string                  `json:"cleat"`
	Experiment  json.RawMessage         `json:"experiment"` // as run, flags applied; the keys of its YAML form
	Seed        uint64                  `json:"seed"`
	Repeat      int                     `json:"repeat"`
	Warmup      int                     `json:"warmup"`
	Partial     bool                    `json:"partial"` // the run was interrupted
	Started     time.Time               `json:"started"`
	Ended       time.Time               `json:"ended,omitzero"` // zero: the run was killed
	Lab         string                  `json:"lab"`            // "user", "root", "none" or "machines"
	Processors  []int                   `json:"processors"`
	Networks    map[string]NetworkFacts `json:"networks"`
	Host        json.RawMessage         `json:"host"`               // host.Host
	Findings    json.RawMessage         `json:"findings"`           // of cleat doctor
	Machines    []MachineFacts          `json:"machines,omitempty"` // between which was measured; none: Host had both ends
	Rates       []SharedRate            `json:"rates,omitempty"`

	closing map[string][]string // notes of networks that were not closed, by their names in Networks
}

func newEnvironment(cfg Config) (Environment, error) {
	e := cfg.Experiment
	recorded, err := e.JSON()
	hostname, _ := os.Hostname() // a report can do without
	flavour, _ := lab.Inside()
	return Environment{
		Preset: e.Name, Title: e.Title, Description: e.Description, Hostname: hostname,
		Command: cfg.Command, Version: cfg.Version, Experiment: recorded,
		Seed: e.Seed, Repeat: e.Repeat, Warmup: e.Warmup,
		Partial: true, Started: time.Now(), Lab: flavour.String(),
		Networks: map[string]NetworkFacts{},
	}, err
}

// note records the facts of a cell's network.
func (e *Environment) note(c cell.Cell, facts NetworkFacts) {
	name := networkName(c)
	facts.Notes = slices.Concat(facts.Notes, e.closing[name])
	e.Networks[name] = facts
}

// notClosed notes that a cell's network was not closed.
func (e *Environment) notClosed(c cell.Cell, text string) {
	name := networkName(c)
	if slices.Contains(e.closing[name], text) {
		return
	}
	if e.closing == nil {
		e.closing = map[string][]string{}
	}
	e.closing[name] = append(e.closing[name], text)
	facts := e.Networks[name]
	facts.Notes = slices.Concat(facts.Notes, []string{text})
	e.Networks[name] = facts
}

// networkName returns the name of a cell's network, with the details that identify this variant.
func networkName(c cell.Cell) string {
	name := c.Network
	var details []string
	if c.Runtime != "" && c.Runtime != cell.Native {
		details = append(details, c.Runtime)
	}
	switch {
	case catalog.RoleOf(c.Network) == catalog.Multipath:
		details = append(details, linkDetails(c)...)
	case c.Topology != "local":
		details = append(details, c.Topology)
	}
	if c.MTU != 0 {
		details = append(details, fmt.Sprintf("MTU %d", c.MTU))
	}
	if c.Direction == "inbound" {
		details = append(details, c.Direction)
	}
	if peer := c.Factors["peer"]; peer != "" {
		details = append(details, "peer "+peer)
	}
	if ports := c.Factors["ports"]; ports != "" {
		details = append(details, "ports "+ports)
	}
	if port := c.Factors["vxlan_port"]; port != "" && port != strconv.Itoa(link.VXLANPort) {
		details = append(details, "port "+port)
	}
	if len(details) > 0 {
		name += " (" + strings.Join(details, ", ") + ")"
	}
	return name
}

// linkDetails returns the details that identify a cell's links and tunnel among those
// of the same network.
func linkDetails(c cell.Cell) []string {
	details := []string{columns.Plural(c.Links, "link")}
	for _, factor := range []string{"link_rate", "variant", "loss", "outer", "scheduler", "settings", "contained"} {
		if level := c.Factors[factor]; level != "" {
			details = append(details, level)
		}
	}
	if c.Factors["crypto"] == "on" {
		details = append(details, "encrypted")
	}
	return details
}

// describeHost runs `cleat doctor` on the host itself, whose interfaces and settings
// this process can't see.
func (e *Environment) describeHost(ctx context.Context) error {
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer out.Close()
	proc, err := lab.Host{}.Start(lab.Command{Args: []string{lab.Self, "doctor", "--json"}, Stdout: in})
	in.Close()
	if err != nil {
		return fmt.Errorf("describe the host: %w", err)
	}
	defer context.AfterFunc(ctx, proc.Kill)()
	text, _ := io.ReadAll(out)
	if err := proc.Wait(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("describe the host: %w", err)
	}
	var doctor struct {
		Host     json.RawMessage `json:"host"`
		Findings json.RawMessage `json:"findings"`
	}
	if err := json.Unmarshal(text, &doctor); err != nil {
		return fmt.Errorf("describe the host: %w", err)
	}
	e.Host, e.Findings = doctor.Host, doctor.Findings
	return nil
}
