// Package client has a running keeper run command lines. It imports little, so that small programs can
// use it.
//
// A client connects to the keeper's socket, a file in the state directory, and sends a Request, one JSON
// object. The keeper answers with a Reply that says whether it has begun, and later with one that has the
// output. Package keep says what a keeper accepts from whom.
//
//	code, err := client.Forward(ctx, socket, client.NewRequest(args), os.Stdout, os.Stderr)
//	if errors.Is(err, client.ErrDeclined) {
//		// run the command line here
//	}
package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"time"
	"unicode/utf8"

	"cleat/internal/localsock"
)

// SocketName is the name, in the state directory, of the Unix socket at which a keeper
// accepts requests.
const SocketName = "keeper.socket"

// A Request is a command line, with the environment in which it was typed.
type Request struct {
	Args  []string          `json:"args"`
	Env   map[string]string `json:"env"`             // those that matter to the command, if they are set and not empty
	Stdin []byte            `json:"stdin,omitempty"` // of commands that read it
}

// NewRequest returns a request for a command line with this process's environment.
func NewRequest(args []string) Request {
	r := Request{Args: args, Env: map[string]string{}}
	r.AddEnv(requestEnv...)
	return r
}

// AddEnv adds variables of this process's environment to a request.
func (r *Request) AddEnv(names ...string) {
	for _, name := range names {
		if value := os.Getenv(name); value != "" {
			r.Env[name] = value
		}
	}
}

// MaxRequest is how long an encoded request may be, in bytes.
const MaxRequest = 1 << 20

// OVSEnv are the variables that locate Open vSwitch. No function takes them as
// parameters, so a keeper can serve only requests that have its own values.
var OVSEnv = []string{"OVS_RUNDIR", "OVS_PKGDATADIR"}

// SearchEnv are the variables that the search for containers depends on.
var SearchEnv = []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST"}

var requestEnv = slices.Concat(SearchEnv, OVSEnv)

// The states of a request. The keeper answers with Begun and later one of the others, or with
// Declined alone.
const (
	Begun    = "begun"
	Done     = "done"
	Declined = "declined" // nothing was changed: the client runs the command itself
)

// A Reply is what a keeper answers.
type Reply struct {
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

// Forward has the keeper that listens at a socket run a command line. It copies the
// command's output to stdout and stderr, and returns its exit code. It blocks until the
// command is complete; if the calling process ends before, the keeper undoes the command.
// The error is ErrDeclined or ErrLost, or one of writing the output.
func Forward(ctx context.Context, socket string, r Request, stdout, stderr io.Writer) (code int, err error) {
	words := slices.Concat(r.Args, slices.Collect(maps.Values(r.Env)))
	if slices.ContainsFunc(words, func(w string) bool { return !utf8.ValidString(w) }) {
		return 0, ErrDeclined // JSON would change it
	}
	ctx, cancel := context.WithTimeout(ctx, beginWithin)
	defer cancel()
	conn, err := localsock.DialFile(ctx, socket)
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

// answerWithin is how long Gone waits for an answer.
const answerWithin = 500 * time.Millisecond

// Gone reports whether no keeper serves commands at a socket: it is ending, or does not serve them yet. One
// that is silent is there.
func Gone(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	conn, err := localsock.DialFile(ctx, socket)
	if err != nil {
		return !errors.Is(err, context.DeadlineExceeded)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	err = conn.SetDeadline(deadline)
	if err == nil {
		err = json.NewEncoder(conn).Encode(Request{}) // which every keeper declines
	}
	if err == nil {
		err = json.NewDecoder(conn).Decode(&Reply{})
	}
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// await returns the reply that ends a request.
func await(conn *net.UnixConn) (Reply, error) {
	messages := json.NewDecoder(conn)
	begun := false
	for {
		var r Reply
		err := messages.Decode(&r)
		if err == nil && r.State == Begun {
			begun = true
			err = conn.SetDeadline(time.Time{}) // a DHCP server may take its time
		}
		switch {
		case err != nil && begun:
			return Reply{}, ErrLost
		case err == nil && r.State == Done:
			return r, nil
		case err != nil || r.State != Begun:
			return Reply{}, ErrDeclined
		}
	}
}
