package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"cleat/lab"
)

// Environment is environment.json: everything that changes a result, beside
// the samples.
type Environment struct {
	Preset      string                  `json:"preset"`
	Title       string                  `json:"title"`
	Description string                  `json:"description,omitempty"`
	Command     []string                `json:"command"`
	Version     string                  `json:"cleat"`
	Seed        uint64                  `json:"seed"`
	Repeat      int                     `json:"repeat"`
	Warmup      int                     `json:"warmup"`
	Partial     bool                    `json:"partial"` // ended before all was measured
	Started     time.Time               `json:"started"`
	Ended       time.Time               `json:"ended"`
	Lab         string                  `json:"lab"` // "user", "root" or "none"
	Processors  []int                   `json:"processors"`
	Networks    map[string]NetworkFacts `json:"networks"`
	Host        json.RawMessage         `json:"host"`     // host.Host
	Findings    json.RawMessage         `json:"findings"` // of cleat doctor
}

func newEnvironment(cfg Config) Environment {
	e := cfg.Experiment
	return Environment{
		Preset: e.Name, Title: e.Title, Description: e.Description,
		Command: cfg.Command, Version: cfg.Version,
		Seed: e.Seed, Repeat: e.Repeat, Warmup: e.Warmup,
		Partial: true, Started: time.Now(), Lab: flavour(),
		Networks: map[string]NetworkFacts{},
	}
}

// note keeps what is known of a network; of several wirings, the last one's.
func (e *Environment) note(network string, facts NetworkFacts) { e.Networks[network] = facts }

// describeHost asks `cleat doctor` on the host itself, whose interfaces and
// settings this process can't see.
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
	said, _ := io.ReadAll(out)
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
	if err := json.Unmarshal(said, &doctor); err != nil {
		return fmt.Errorf("describe the host: %w", err)
	}
	e.Host, e.Findings = doctor.Host, doctor.Findings
	return nil
}
