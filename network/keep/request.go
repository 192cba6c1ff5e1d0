package keep

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"time"
	"unicode/utf8"

	"cleat/internal/localsock"
	"cleat/network/attach"
)

// socketName is the name, in the state directory, of the Unix socket at which a keeper
// accepts requests.
const socketName = "keeper.socket"

// A Request is a command line, with the environment in which it was typed.
type Request struct {
	Args []string          `json:"args"`
	Env  map[string]string `json:"env"` // those of requestEnv that are set and not empty
}

// OVSEnv are the variables that locate Open vSwitch. No function takes them as
// parameters, so a keeper can serve only requests that have its own values.
var OVSEnv = []string{"OVS_RUNDIR", "OVS_PKGDATADIR"}

// searchEnv are the variables that the search for containers depends on.
var searchEnv = []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST"}

var requestEnv = slices.Concat(searchEnv, OVSEnv)

// The states of a request. The keeper answers with stateBegun and later one of the
// others, or with stateDeclined alone.
const (
	stateBegun    = "begun"
	stateDone     = "done"
	stateDeclined = "declined" // nothing was changed: the client runs the command itself
)

type reply struct {
	State  string `json:"state"`
	Exit   int    `json:"exit,omitempty"`
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
}

var (
	// ErrDeclined reports that no keeper ran the command line: none is running, it
	// did not answer in time, or the command line could mean something else to it.
	// Nothing was changed.
	ErrDeclined = errors.New("no keeper runs this command")

	// ErrLost reports that the keeper ended while it ran the command line. What was
	// changed by then is unknown; the next command that changes wiring undoes what is
	// incomplete.
	ErrLost = errors.New("the keeper ended before the command was complete")
)

// beginWithin is how long a client waits for a keeper to begin. A keeper begins at once,
// unless it is stopped or hangs.
const beginWithin = 3 * time.Second

// Forward has the keeper of a state directory run a command line. It copies the
// command's output to stdout and stderr, and returns its exit code. It blocks until the
// command is complete; if the calling process ends before, the keeper undoes the command.
// The error is ErrDeclined or ErrLost, or one of writing the output.
func Forward(ctx context.Context, store *attach.Store, args []string, stdout, stderr io.Writer) (code int, err error) {
	r := Request{Args: args, Env: map[string]string{}}
	words := slices.Clone(args)
	for _, name := range requestEnv {
		if value := os.Getenv(name); value != "" {
			r.Env[name] = value
			words = append(words, value)
		}
	}
	if slices.ContainsFunc(words, func(w string) bool { return !utf8.ValidString(w) }) {
		return 0, ErrDeclined // JSON would change it
	}
	ctx, cancel := context.WithTimeout(ctx, beginWithin)
	defer cancel()
	conn, err := localsock.DialFile(ctx, store.Path(socketName))
	if err != nil {
		return 0, ErrDeclined
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if conn.SetDeadline(deadline) != nil || json.NewEncoder(conn).Encode(r) != nil {
		return 0, ErrDeclined
	}
	answer, err := await(conn)
	if err != nil {
		return 0, err
	}
	if _, err := stdout.Write(answer.Stdout); err != nil {
		return 0, err
	}
	_, err = stderr.Write(answer.Stderr)
	return answer.Exit, err
}

// await returns the reply that ends a request.
func await(conn *net.UnixConn) (reply, error) {
	messages := json.NewDecoder(conn)
	begun := false
	for {
		var r reply
		err := messages.Decode(&r)
		if err == nil && r.State == stateBegun {
			begun = true
			err = conn.SetDeadline(time.Time{}) // a DHCP server may take its time
		}
		switch {
		case err != nil && begun:
			return reply{}, ErrLost
		case err == nil && r.State == stateDone:
			return r, nil
		case err != nil || r.State != stateBegun:
			return reply{}, ErrDeclined
		}
	}
}
