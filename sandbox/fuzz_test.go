package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// FuzzParseState: for any message of an OCI runtime, the descriptor of notifications is
// one that came with it, and the process id is positive.
func FuzzParseState(f *testing.F) {
	f.Add(`{"ociVersion":"1.0.2","fds":["seccompFd"],"pid":4711,"state":{"pid":4711,"bundle":"/b"}}`, 1)
	f.Add(`{"fds":["other","seccompFd","seccompFd"],"pid":1}`, 3)
	f.Add(`{"fds":["seccompFd"],"pid":-1}{}`, 1)
	f.Add(`{"fds":null}`, 0)
	f.Add(`{"FDS":["seccompFd"],"pid":1e3}`, 1)
	f.Add(strings.Repeat("[", 20000), 0)
	f.Fuzz(func(t *testing.T, text string, fds int) {
		state, index, err := parseState(strings.NewReader(text), fds)
		if err != nil {
			return
		}
		if index < 0 || index >= fds || state.Fds[index] != specs.SeccompFdName || state.Pid <= 0 {
			t.Errorf("descriptor %d of %d, state %+v", index, fds, state)
		}
	})
}

// FuzzHasConfigCaps: a configuration that can't be parsed is never taken for one without
// the capabilities.
func FuzzHasConfigCaps(f *testing.F) {
	f.Add([]byte(`{"process":{"capabilities":{"bounding":["CAP_NET_ADMIN"]}}}`))
	f.Add([]byte(`{"process":{"capabilities":{"ambient":["CAP_CHOWN"],"effective":null}}}`))
	f.Add([]byte(`{"process":{"capabilities":["CAP_SYS_ADMIN"]}}`))
	f.Add([]byte(`{"process":null}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if !hasConfigCaps(text) && (len(bytes.TrimSpace(text)) == 0 || text[0] == '[') {
			t.Errorf("hasConfigCaps(%q) = false", text)
		}
	})
}

// FuzzParseCredentials: credentials are only returned for a complete status.
func FuzzParseCredentials(f *testing.F) {
	f.Add([]byte("Name:\tx\nUmask:\t0022\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapEff:\t0000000000003000\n"))
	f.Add([]byte("Umask:\nUid:\t1\nGid:\nGroups:\nCapEff:\n"))
	f.Add([]byte("Umask:\t0022\nUmask:\t0022\nUmask:\t0022\nUmask:\t0022\nUmask:\t0022\n"))
	f.Add([]byte("Uid:\t0\t0\t0\t18446744073709551615\n"))
	f.Fuzz(func(t *testing.T, status []byte) {
		c, err := parseCredentials(status)
		if err != nil {
			return
		}
		for _, name := range []string{"Umask:", "Uid:", "Gid:", "Groups:", "CapEff:"} {
			if !bytes.Contains(status, []byte(name)) {
				t.Errorf("parseCredentials(%q) = %+v", status, c)
			}
		}
		if c.UID < 0 || c.GID < 0 || slices.Min(append(c.Groups, 0)) < 0 {
			t.Errorf("parseCredentials(%q) = %+v with negative ids", status, c)
		}
	})
}

// FuzzParseReport: an accepted report announced as many descriptors as came, and is not
// of a failure.
func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"Stage":"device","Files":["tun","tun"]}`), 2)
	f.Add([]byte(`{"Stage":"failed","Step":"create device","Errno":16,"Message":"busy","Remedy":"x"}`), 0)
	f.Add([]byte(`{"Stage":"network","Warnings":["w"],"NoSplice":"s"}`), 0)
	f.Add([]byte(`{"Files":["tun"]}`), 0)
	f.Add([]byte(`null`), 0)
	f.Fuzz(func(t *testing.T, text []byte, fds int) {
		r, err := parseReport(text, fds)
		if err == nil && (len(r.Files) != fds || r.Stage == stageFailed) {
			t.Errorf("parseReport(%q, %d) = %+v", text, fds, r)
		}
		var setup *SetupError
		if errors.As(err, &setup) {
			_, _ = setup.Error(), setup.Hint()
		}
	})
}

// FuzzParseListener: a parsed address has the family in the kernel's message.
func FuzzParseListener(f *testing.F) {
	message := make([]byte, diagMessageBytes)
	message[0] = unix.AF_INET
	binary.BigEndian.PutUint16(message[4:], 80)
	f.Add(message)
	six := append(slices.Clone(message), 5, 0, diagV6Only, 0, 1, 0, 0, 0)
	six[0] = unix.AF_INET6
	f.Add(six)
	f.Add(append(slices.Clone(six), 0xff, 0xff))
	f.Add(message[:diagMessageBytes-1])
	f.Fuzz(func(t *testing.T, data []byte) {
		l, ok := parseListener(TCP, data)
		if ok && (!l.addr.IsValid() || data[0] == unix.AF_INET && !l.addr.Addr().Is4()) {
			t.Errorf("parseListener(%x) = %+v", data, l)
		}
	})
}
