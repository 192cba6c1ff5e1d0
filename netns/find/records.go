package find

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"

	"cleat/internal/columns"
)

const containerdSocket = "/run/containerd/containerd.sock"

// records finds the containers of root's containerd that have no task. They are only in
// its database, which nobody else can read while it runs. Its API is gRPC; two unary
// calls are enough (api/services/namespaces/v1/namespace.proto and
// api/services/containers/v1/containers.proto of containerd).
type records struct{ m *machine }

// search returns the containers whose ids begin with word. Some of them may have a task.
func (r records) search(ctx context.Context, word string) ([]*candidate, error) {
	if _, err := os.Stat(r.m.path(containerdSocket)); err != nil {
		return nil, errAbsent
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.m.timeout, silent(r.m.timeout))
	defer cancel()
	all, err := r.list(ctx, word)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return all, err
}

func (r records) list(ctx context.Context, word string) ([]*candidate, error) {
	engine := api{m: r.m, engine: Containerd, socket: containerdSocket}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, _, err := engine.dial(ctx)
		return conn, err
	}
	transport := &http.Transport{DialContext: dial, Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	spaces, err := listNames(ctx, transport, "containerd.services.namespaces.v1.Namespaces", "", "")
	if err != nil {
		return nil, err
	}
	var all []*candidate
	for _, space := range spaces {
		if space == dockersSpace { // Docker reports those
			continue
		}
		ids, err := listNames(ctx, transport, "containerd.services.containers.v1.Containers", space,
			"id~="+strconv.Quote("^"+regexp.QuoteMeta(strings.TrimPrefix(word, space+"/"))))
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			all = append(all, &candidate{Found: Found{Engine: Containerd, ID: id, Space: space}, state: "it has no task", remedy: startTask(space, id)})
		}
	}
	return all, nil
}

func startTask(space, id string) string {
	return fmt.Sprintf("ctr --namespace %s tasks start --detach %s", columns.Word(space), columns.Word(id))
}

// listNames calls a service's List with a filter, and returns field 1 of each field 1 of
// the answer: the names of namespaces, the ids of containers.
func listNames(ctx context.Context, transport http.RoundTripper, service, space, filter string) ([]string, error) {
	message := []byte(nil)
	if filter != "" {
		message = append(binary.AppendUvarint([]byte{1<<3 | lengthPrefixed}, uint64(len(filter))), filter...)
	}
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...) // not compressed
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://containerd/"+service+"/List", bytes.NewReader(frame))
	if err != nil {
		return nil, err
	}
	r.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	if space != "" {
		r.Header.Set("containerd-namespace", space)
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", service, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, bodyMax))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", service, err)
	}
	status := cmp.Or(answer.Trailer.Get("Grpc-Status"), answer.Header.Get("Grpc-Status")) // a trailer, or a header if there is no body
	const head = 5                                                                        // compression flag and length of the message
	if status != "0" || len(body) < head || body[0] != 0 || uint64(len(body)-head) != uint64(binary.BigEndian.Uint32(body[1:])) {
		return nil, fmt.Errorf("ask %s: HTTP status %s, gRPC status %q, %d bytes", service, answer.Status, status, len(body))
	}
	var names []string
	for _, one := range fieldOne(body[head:]) {
		for _, name := range fieldOne(one) {
			names = append(names, string(name))
		}
	}
	return names, nil
}

// lengthPrefixed is the wire type of strings and messages in protocol buffers.
const lengthPrefixed = 2

var errMessage = errors.New("protocol buffer message is truncated")

// fieldOne returns the values of field 1 of a message, up to the first malformed field.
func fieldOne(message []byte) [][]byte {
	var all [][]byte
	for len(message) > 0 {
		key, value, rest, err := field(message)
		if err != nil {
			return all
		}
		if key == 1<<3|lengthPrefixed {
			all = append(all, value)
		}
		message = rest
	}
	return all
}

// field splits off the first field of a message. value is set for length-prefixed fields.
func field(message []byte) (key uint64, value, rest []byte, err error) {
	key, n := binary.Uvarint(message)
	if n <= 0 {
		return 0, nil, nil, errMessage
	}
	message = message[n:]
	size := uint64(0)
	switch key & 7 {
	case 0: // a number
		_, n := binary.Uvarint(message)
		if n <= 0 {
			return 0, nil, nil, errMessage
		}
		return key, nil, message[n:], nil
	case 1:
		size = 8
	case 5:
		size = 4
	case lengthPrefixed:
		var n int
		if size, n = binary.Uvarint(message); n <= 0 {
			return 0, nil, nil, errMessage
		}
		message = message[n:]
	default:
		return 0, nil, nil, errMessage
	}
	if size > uint64(len(message)) {
		return 0, nil, nil, errMessage
	}
	return key, message[:size], message[size:], nil
}
