package named

import (
	"errors"
	"io/fs"
	"net/netip"

	"cleat/internal/statedir"
)

// learned returns the addresses of DNS names that rules are about, as the keeper has seen them
// in answers.
func (s Store) learned() (map[string][]netip.Addr, error) {
	all, err := statedir.ReadJSON[map[string][]netip.Addr](s.learnedFile())
	if errors.Is(err, fs.ErrNotExist) || all == nil {
		return nil, nil
	}
	return *all, err
}

func (s Store) learnedFile() string { return s.RunPath("learned.json") }
