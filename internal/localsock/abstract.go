package localsock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ErrTaken means that the name or path is in use by a listener.
var ErrTaken = errors.New("another program listens there already")

// Kind is the prefix that the socket names of one kind of program share.
type Kind string

// Socket identifies an abstract socket. Sockets are comparable.
type Socket struct {
	Kind Kind
	UID  int
	Name string
}

// Own returns the socket of the caller's user with a name, which is not validated.
func (k Kind) Own(name string) Socket { return Socket{k, os.Getuid(), name} }

// String returns the address as package net writes it, with "@" for the leading zero
// byte.
func (s Socket) String() string { return fmt.Sprintf("@%s/%d/%s", s.Kind, s.UID, s.Name) }

// Listen opens the socket in the caller's network namespace. It returns ErrTaken if there
// is a listener already.
func (s Socket) Listen() (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.String(), Net: "unix"})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, ErrTaken
	}
	return l, err
}

// Dial connects to the socket's listener and verifies that it belongs to the user in the
// name, because another user could have taken the name.
func (s Socket) Dial(ctx context.Context) (*net.UnixConn, error) {
	return dial(ctx, s.String(), func(uid int) bool { return uid == s.UID })
}

// Ours reports whether the socket claims to belong to a program that obeys the caller.
func (s Socket) Ours() bool { return s.UID == os.Getuid() || os.Getuid() == 0 }

// List returns the sockets of a kind in the caller's network namespace, without
// duplicates.
func (k Kind) List() ([]Socket, error) {
	table, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		return nil, fmt.Errorf("list abstract sockets: %w", err)
	}
	return k.parse(table), nil
}

// parse returns the names of a kind among the listening sockets in /proc/net/unix. Its
// lines read "Num: RefCount Protocol Flags Type St Inode Path", and "@" stands for an
// abstract name's zero byte. Connected sockets carry their listener's name, but not
// SO_ACCEPTCON (0x10000) in Flags.
func (k Kind) parse(table []byte) []Socket {
	var found []Socket
	for line := range bytes.Lines(table) {
		f := strings.Fields(string(line))
		if len(f) != 8 || f[3] != "00010000" {
			continue
		}
		rest, ok := strings.CutPrefix(f[7], "@"+string(k)+"/")
		if !ok {
			continue
		}
		uidText, name, ok := strings.Cut(rest, "/")
		uid, err := strconv.Atoi(uidText)
		if s := (Socket{k, uid, name}); ok && err == nil && !slices.Contains(found, s) {
			found = append(found, s)
		}
	}
	return found
}
