package traffic

import (
	"errors"
	"testing"
)

// TestConclude checks the conclusions from the findings of a probe's two halves.
func TestConclude(t *testing.T) {
	other := errors.New("connection refused")
	whole, cut := sizes{link: 1500, arrived: 1500, full: 1500}, sizes{link: 1500, arrived: 1400, full: 1500}
	tests := []struct {
		name      string
		sizes     sizes
		udp, tcp  error
		blackHole bool
		failed    bool
		warned    bool
	}{
		{"all arrives", whole, nil, nil, false, false, false},
		{"TCP adapts", cut, nil, nil, false, false, true},
		{"full-size packets vanish", cut, nil, errStalled, true, true, false},
		{"datagrams are not forwarded, a stream stalls", whole, other, errStalled, true, true, false},
		{"datagrams are not forwarded", whole, other, nil, false, true, false},
		{"full-size packets arrive, a slow stream does not end in time", whole, nil, errStalled, false, false, true},
		{"a stream is refused", whole, nil, other, false, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &client{}
			c.conclude(tt.sizes, tt.udp, tt.tcp)
			r := c.result
			if r.BlackHole != tt.blackHole || (r.ProbeError != "") != tt.failed || (len(r.Warnings) > 0) != tt.warned {
				t.Errorf("black hole %v, error %q, warnings %q", r.BlackHole, r.ProbeError, r.Warnings)
			}
		})
	}
}
