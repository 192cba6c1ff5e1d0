package keep

import (
	"bytes"
	"context"
	"encoding/json"
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
	if err := ask(ctx, store, SyncRulesCommand(), io.Discard); err != nil {
		return fmt.Errorf("change rules, which belong to the keeper: %w", err)
	}
	return nil
}

// CountersCommand is the command line that a keeper runs for FastCounters.
func CountersCommand() []string { return []string{"net", "fast-counters"} }

// FastCounters asks the keeper for the packets that went the fast way (fastpath.Counters), and reads its answer into a
// value.
func FastCounters(ctx context.Context, store *attach.Store, into any) error {
	var out bytes.Buffer
	err := ask(ctx, store, CountersCommand(), &out)
	if err == nil {
		err = json.Unmarshal(out.Bytes(), into)
	}
	if err != nil {
		return fmt.Errorf("ask the keeper for the packets that went the fast way: %w", err)
	}
	return nil
}

// ask has the keeper run a command line.
func ask(ctx context.Context, store *attach.Store, args []string, stdout io.Writer) error {
	var said bytes.Buffer
	code, err := client.Forward(ctx, store.Path(client.SocketName), client.NewRequest(args), stdout, &said)
	if err == nil && code != 0 {
		err = errors.New(strings.TrimSpace(said.String()))
	}
	return err
}
