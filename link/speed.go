package link

import (
	"fmt"
	"math"

	"github.com/safchain/ethtool"
)

// NominalSpeed is what the driver claims (ethtool's "Speed"), in Mbit/s; 0 when
// it claims none. Virtual devices make it up.
func (l *Link) NominalSpeed() (int, error) {
	w := l.current()
	e, err := w.openEthtool()
	if err != nil {
		return 0, err
	}
	defer e.Close()
	speed, err := e.CmdGet(&ethtool.EthtoolCmd{}, w.name)
	if err != nil {
		return 0, fmt.Errorf("read the speed of link %q: %w", w.name, err)
	}
	if speed == math.MaxUint32 {
		return 0, nil
	}
	return int(speed), nil
}
