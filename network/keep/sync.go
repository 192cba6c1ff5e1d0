package keep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"cleat/network/attach"
	"cleat/network/keep/client"
)

// SyncRulesCommand is the command line that a keeper runs for SyncRules.
func SyncRulesCommand() []string { return []string{"net", "sync-rules"} }

// SyncRules has the keeper, which owns the rules of networks, make them as the files say.
func SyncRules(ctx context.Context, store *attach.Store) error {
	var said bytes.Buffer
	code, err := client.Forward(ctx, store.Path(client.SocketName), client.NewRequest(SyncRulesCommand()), io.Discard, &said)
	if err == nil && code != 0 {
		err = errors.New(strings.TrimSpace(said.String()))
	}
	if err != nil {
		return fmt.Errorf("change rules, which belong to the keeper: %w", err)
	}
	return nil
}
