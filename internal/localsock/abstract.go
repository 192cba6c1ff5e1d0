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

// ErrTaken says that somebody listens at the name or path.
var ErrTaken = errors.New("somebody listens there already")

// Kind is what the names of one kind of program begin with.
type Kind string

// Socket is an abstract socket by its name. Two Sockets may be compared.
type Socket struct {
	Kind Kind
	UID  int
	Name string
}

// Own is the socket of the caller's user with a name, which is not checked.
func (k Kind) Own(name string) Socket { return Socket{k, os.Getuid(), name} }

// String is the address as package net writes it, with "@" for the zero byte in
// front.
func (s Socket) String() string { return fmt.Sprintf("@%s/%d/%s", s.Kind, s.UID, s.Name) }

// Listen opens the socket in the caller's network namespace. The error wraps
// ErrTaken where there is one already.
func (s Socket) Listen() (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.String(), Net: "unix"})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, ErrTaken
	}
	return l, err
}

// Dial connects to who listens at the socket, and makes sure that it is of the
// user in the name: somebody else could have taken that.
func (s Socket) Dial(ctx context.Context) (*net.UnixConn, error) {
	return dial(ctx, s.String(), func(uid int) bool { return uid == s.UID })
}

// Ours tells whether it claims to be of a program that would listen to the caller.
func (s Socket) Ours() bool { return s.UID == os.Getuid() || os.Getuid() == 0 }

// List finds the sockets of a kind in the caller's network namespace, each once.
func (k Kind) List() ([]Socket, error) {
	table, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		return nil, fmt.Errorf("list abstract sockets: %w", err)
	}
	return k.parse(table), nil
}

// parse finds the names of a kind among the listening sockets of /proc/net/unix:
// "Num: RefCount Protocol Flags Type St Inode Path", where an abstract name's
// first byte is shown as "@". Connected sockets have the name of their
// listener, without SO_ACCEPTCON (0x10000) in Flags.
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
