package supervisor

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"cleat/internal/sys"

	"github.com/mdlayher/netlink"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A parsed address is converted back to an address with the same meaning.
func FuzzDestination(f *testing.F) {
	inet, inet6 := make([]byte, unix.SizeofSockaddrInet4), make([]byte, unix.SizeofSockaddrInet6)
	native.PutUint16(inet, unix.AF_INET)
	copy(inet[2:], []byte{0, 80, 192, 0, 2, 1})
	native.PutUint16(inet6, unix.AF_INET6)
	copy(inet6[2:], []byte{0, 80, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8})
	mapped := slices.Clone(inet6)
	copy(mapped[8:], netip.MustParseAddr("::ffff:127.0.0.1").AsSlice())
	scoped := slices.Clone(inet6)
	scoped[24] = 1
	for _, raw := range [][]byte{inet, inet6, mapped, scoped, inet[:8], inet6[:24], {2}, nil} {
		f.Add(raw, unix.AF_INET)
		f.Add(raw, unix.AF_INET6)
	}
	f.Fuzz(func(t *testing.T, raw []byte, family int) {
		to, ok := destination(raw, family)
		if !ok {
			return
		}
		if family != unix.AF_INET && family != unix.AF_INET6 || !to.Addr().IsValid() || to.Addr().Is4In6() || to.Addr().Zone() != "" {
			t.Fatalf("%x of family %d: parsed as %s", raw, family, to)
		}
		made := address(to, family)
		if again, ok := destination(made.Raw(), family); !ok || again != to {
			t.Errorf("%x of family %d: parsed as %s, then as %s", raw, family, to, again)
		}
	})
}

// Profile allows no call that the supervisor must see, whatever the base profile is.
func FuzzProfile(f *testing.F) {
	if sys.NativeArch == 0 {
		f.Skip(sys.ErrSeccompArch)
	}
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ALLOW"}`))
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["connect","socket","read"],"action":"SCMP_ACT_ALLOW"}]}`))
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"name":"bind","action":"SCMP_ACT_ALLOW"},{"names":["socket"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":40,"op":"SCMP_CMP_NE"}]}]}`))
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["connect"],"action":"SCMP_ACT_KILL","includes":{}}]}`))
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ALLOW","Syscalls":[{"names":["connect"],"action":"SCMP_ACT_ALLOW","args":[{"index":9,"op":"SCMP_CMP_GE"}]}],"syscalls":null}`))
	f.Fuzz(func(t *testing.T, base []byte) {
		out, err := Profile(base, "/run/s.sock")
		if err != nil {
			return
		}
		var p struct {
			DefaultAction specs.LinuxSeccompAction
			Syscalls      []profileRule
		}
		d := json.NewDecoder(bytes.NewReader(out))
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"connect", "bind", "listen", "setsockopt"} {
			action := p.DefaultAction
			for _, r := range p.Syscalls {
				if slices.Contains(r.Names, name) || r.Name == name {
					action = r.Action
					if r.Action == specs.ActAllow {
						t.Errorf("%s allows %s: %+v", base, name, r)
					}
				}
			}
			if action == specs.ActAllow {
				t.Errorf("%s allows %s by default", base, name)
			}
		}
		for _, r := range p.Syscalls {
			if r.Action == specs.ActAllow && (slices.Contains(r.Names, "socket") || r.Name == "socket") {
				if on, _ := r.splitArgs(0); len(on) != 1 || on[0].Op != specs.OpEqualTo || !slices.Contains(families, uint32(on[0].Value)) || on[0].Value > lastFamily {
					t.Errorf("%s allows sockets: %+v", base, r)
				}
			}
		}
	})
}

// parseInfo parses a description of a descriptor or returns an error.
func FuzzParseInfo(f *testing.F) {
	f.Add([]byte("pos:\t0\nflags:\t02004002\nmnt_id:\t10\nino:\t4711\n"))
	f.Add([]byte("flags:\t08\nino:\t1\n"))
	f.Add([]byte("flags:\t\nino:\n"))
	f.Add([]byte("ino:\t18446744073709551616\nflags:\t0\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if d, err := parseInfo(text); err == nil && (!bytes.Contains(text, []byte("flags:")) || !bytes.Contains(text, []byte("ino:"))) {
			t.Errorf("%q: %+v", text, d)
		}
		_, _ = field(text, "Tgid:", 10)
		_, _ = field(text, "CapEff:", 16)
	})
}

// leadsTo returns true only for routes that contain the device's index.
func FuzzLeadsTo(f *testing.F) {
	route := make([]byte, unix.SizeofRtMsg)
	route[7] = unix.RTN_UNICAST
	attributes := netlink.NewAttributeEncoder()
	attributes.Bytes(unix.RTA_DST, []byte{192, 0, 2, 1})
	attributes.Uint32(unix.RTA_OIF, 7)
	encoded, err := attributes.Encode()
	if err != nil {
		f.Fatal(err)
	}
	route = append(route, encoded...)
	if !leadsTo(route, 7) {
		f.Error("leadsTo returns false for a route through the device")
	}
	f.Add(route, uint32(7))
	f.Add(route[:len(route)-1], uint32(7))
	f.Add(route[:4], uint32(0))
	f.Fuzz(func(t *testing.T, route []byte, device uint32) {
		if leadsTo(route, device) && !bytes.Contains(route, native.AppendUint32(nil, device)) {
			t.Errorf("%x leads to device %d", route, device)
		}
	})
}
