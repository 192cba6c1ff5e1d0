package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// newPool returns an empty pool of these subnets.
func newPool(t testing.TB, subnets ...Subnet) *Pool {
	t.Helper()
	p := &Pool{Dir: t.TempDir(), Subnets: subnets}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	return p
}

var none netip.Addr

// allocate allocates from the first subnet.
func allocate(t testing.TB, p *Pool, owner Owner, prefer netip.Addr) netip.Addr {
	t.Helper()
	a, err := p.Allocate(p.Subnets[0].Prefix, owner, prefer, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// allocateAll allocates until the first subnet is full.
func allocateAll(t testing.TB, p *Pool, owner Owner) (all []netip.Addr) {
	t.Helper()
	for {
		a, err := p.Allocate(p.Subnets[0].Prefix, owner, none, nil)
		var full *FullError
		if errors.As(err, &full) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(all, a) {
			t.Fatalf("%s was given out twice", a)
		}
		all = append(all, a)
	}
}

func claim(t testing.TB, p *Pool, a string, owner Owner) {
	t.Helper()
	if err := p.Claim(addr(a), owner, nil); err != nil {
		t.Fatal(err)
	}
}

func release(t testing.TB, p *Pool, a netip.Addr, owner Owner) {
	t.Helper()
	if err := p.Release(a, owner); err != nil {
		t.Fatal(err)
	}
}

func checkOwner(t testing.TB, p *Pool, a netip.Addr, want Owner) {
	t.Helper()
	if got, err := p.Owner(a); err != nil || got != want {
		t.Errorf("owner of %s: got %q, %v, want %q", a, got, err, want)
	}
}

func TestAllocate(t *testing.T) {
	for name, tt := range map[string]struct {
		subnet Subnet
		want   string
	}{
		"/29": {Subnet{Prefix: prefix("192.0.2.8/29")}, "192.0.2.9 192.0.2.10 192.0.2.11 192.0.2.12 192.0.2.13 192.0.2.14"},
		"/30": {Subnet{Prefix: prefix("192.0.2.8/30"), Gateway: addr("192.0.2.9")}, "192.0.2.10"},
		"/31": {Subnet{Prefix: prefix("192.0.2.8/31")}, "192.0.2.8 192.0.2.9"},
		"/31 with gateway": {Subnet{Prefix: prefix("192.0.2.8/31"), Gateway: addr("192.0.2.8")},
			"192.0.2.9"},
		"gateway in the middle": {Subnet{Prefix: prefix("192.0.2.8/29"), Gateway: addr("192.0.2.11")},
			"192.0.2.9 192.0.2.10 192.0.2.12 192.0.2.13 192.0.2.14"},
		"exclude": {Subnet{Prefix: prefix("192.0.2.0/28"), Exclude: prefixes("192.0.2.4/31", "192.0.2.8/29", "192.0.2.5/32")},
			"192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.6 192.0.2.7"},
		"exclude all": {Subnet{Prefix: prefix("192.0.2.0/28"), Exclude: prefixes("192.0.0.0/16")}, ""},
		"range": {Subnet{Prefix: prefix("192.0.2.0/24"), First: addr("192.0.2.99"), Last: addr("192.0.2.101")},
			"192.0.2.99 192.0.2.100 192.0.2.101"},
		"range to the end": {Subnet{Prefix: prefix("192.0.2.0/24"), First: addr("192.0.2.253")}, "192.0.2.253 192.0.2.254"},
		"range from the start": {Subnet{Prefix: prefix("192.0.2.0/24"), Last: addr("192.0.2.2")},
			"192.0.2.1 192.0.2.2"},
		"end of IPv4":  {Subnet{Prefix: prefix("255.255.255.252/30")}, "255.255.255.253 255.255.255.254"},
		"/127":         {Subnet{Prefix: prefix("2001:db8::2/127")}, "2001:db8::2 2001:db8::3"},
		"/126":         {Subnet{Prefix: prefix("2001:db8::/126"), Gateway: addr("2001:db8::1")}, "2001:db8::2 2001:db8::3"},
		"IPv6 carries": {Subnet{Prefix: prefix("2001:db8::/32"), First: addr("2001:db8::ffff:ffff:ffff:ffff"), Last: addr("2001:db8:0:1::1")}, "2001:db8::ffff:ffff:ffff:ffff 2001:db8:0:1:: 2001:db8:0:1::1"},
		"end of IPv6":  {Subnet{Prefix: prefix("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127")}, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, tt.subnet)
			for range 2 {
				all := allocateAll(t, p, "docker.web")
				if got := strings.Trim(fmt.Sprint(all), "[]"); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				for _, a := range all {
					checkOwner(t, p, a, "docker.web")
					release(t, p, a, "docker.web")
				}
			}
		})
	}
}

// The first IPv6 addresses of a /64 are short, and the first of an IPv4 /8 cost no more than
// those of a small subnet.
func TestLargeSubnets(t *testing.T) {
	for name, tt := range map[string]struct {
		subnet Subnet
		want   []string
		far    string
	}{
		"/64": {Subnet{Prefix: prefix("2001:db8::/64"), Gateway: addr("2001:db8::1")}, []string{"2001:db8::2", "2001:db8::3", "2001:db8::4"}, "2001:db8::abcd:0:0:1"},
		"/8":  {Subnet{Prefix: prefix("10.0.0.0/8")}, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, "10.255.255.254"},
		"/0":  {Subnet{Prefix: prefix("0.0.0.0/0")}, []string{"0.0.0.1", "0.0.0.2", "0.0.0.3"}, "203.0.113.1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, tt.subnet)
			claim(t, p, tt.far, "docker.far")
			for i, want := range tt.want {
				if got := allocate(t, p, Owner(fmt.Sprint("docker.", i)), none); got != addr(want) {
					t.Errorf("got %s, want %s", got, want)
				}
			}
			info, err := os.Stat(hintPath(p.Dir, tt.subnet.Prefix))
			if err != nil {
				t.Fatal(err)
			}
			if used := info.Sys().(*syscall.Stat_t).Blocks * 512; used > 1<<20 {
				t.Errorf("the hint takes %d bytes of disk", used)
			}
		})
	}
}

// An IPv4 /8 has addresses at its far end, and they are found.
func TestFarEnd(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("10.0.0.0/8")})
	allocate(t, p, "docker.a", none)
	h := p.openHint(&p.Subnets[0], 0)
	defer h.close()
	h.advance(h.size - 3)
	for _, want := range []string{"10.255.255.254", "10.0.0.2"} {
		if got := allocate(t, p, "docker.a", none); got != addr(want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A released address is used again after all others.
func TestRoundRobin(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/29")})
	var got []string
	for range 8 {
		a := allocate(t, p, "docker.loop", none)
		got = append(got, strings.TrimPrefix(a.String(), "192.0.2."))
		release(t, p, a, "docker.loop")
	}
	if want := "1 2 3 4 5 6 1 2"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestPrefer(t *testing.T) {
	subnet := Subnet{Prefix: prefix("192.0.2.0/24"), First: addr("192.0.2.100"), Gateway: addr("192.0.2.1"), Exclude: prefixes("192.0.2.64/28")}
	for name, tt := range map[string]struct{ prefer, want string }{
		"free":          {"192.0.2.150", "192.0.2.150"},
		"outside range": {"192.0.2.20", "192.0.2.20"},
		"own":           {"192.0.2.33", "192.0.2.33"},
		"taken":         {"192.0.2.30", "192.0.2.100"},
		"gateway":       {"192.0.2.1", "192.0.2.100"},
		"network":       {"192.0.2.0", "192.0.2.100"},
		"excluded":      {"192.0.2.70", "192.0.2.100"},
		"outside":       {"198.51.100.2", "192.0.2.100"},
		"other family":  {"2001:db8::1", "192.0.2.100"},
		"mapped":        {"::ffff:192.0.2.150", "192.0.2.100"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, subnet)
			claim(t, p, "192.0.2.30", "docker.other")
			claim(t, p, "192.0.2.33", "docker.web")
			if got := allocate(t, p, "docker.web", addr(tt.prefer)); got != addr(tt.want) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if got := allocate(t, p, "docker.web", none); got == addr(tt.want) {
				t.Errorf("%s was given out twice", got)
			}
		})
	}
}

func TestClaim(t *testing.T) {
	subnets := []Subnet{
		{Prefix: prefix("192.0.2.0/24"), Gateway: addr("192.0.2.1"), First: addr("192.0.2.100"), Exclude: prefixes("192.0.2.64/28")},
		{Prefix: prefix("2001:db8::/64"), Gateway: addr("2001:db8::1")},
		{Prefix: prefix("198.51.100.0/31")},
	}
	for name, tt := range map[string]struct {
		addr   string
		reason Reason
		owner  Owner
		text   string
	}{
		"free":          {addr: "192.0.2.200"},
		"outside range": {addr: "192.0.2.9"},
		"own":           {addr: "192.0.2.4"},
		"IPv6":          {addr: "2001:db8::dead:beef"},
		"/31":           {addr: "198.51.100.0"},
		"last of IPv6":  {addr: "2001:db8::ffff:ffff:ffff:ffff"},
		"outside": {addr: "203.0.113.5", reason: OutsideSubnet,
			text: "address 203.0.113.5 is outside 192.0.2.0/24, 2001:db8::/64 or 198.51.100.0/31"},
		"zone":     {addr: "2001:db8::5%eth0", reason: OutsideSubnet},
		"mapped":   {addr: "::ffff:192.0.2.9", reason: OutsideSubnet},
		"network":  {addr: "192.0.2.0", reason: NetworkAddress, text: "address 192.0.2.0 is the network address of 192.0.2.0/24"},
		"anycast":  {addr: "2001:db8::", reason: AnycastAddress, text: "address 2001:db8:: is the subnet-router anycast address of 2001:db8::/64"},
		"gateway":  {addr: "2001:db8::1", reason: GatewayAddress, text: "address 2001:db8::1 is the gateway of 2001:db8::/64"},
		"excluded": {addr: "192.0.2.79", reason: ExcludedAddress, text: "address 192.0.2.79 is excluded from 192.0.2.0/24"},
		"broadcast": {addr: "192.0.2.255", reason: BroadcastAddress,
			text: "address 192.0.2.255 is the broadcast address of 192.0.2.0/24"},
		"taken":    {addr: "192.0.2.2", owner: "docker.db", text: "address 192.0.2.2 is taken by docker.db"},
		"reserved": {addr: "192.0.2.3", owner: Reservation("printer"), text: "address 192.0.2.3 is reserved (printer)"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, subnets...)
			claim(t, p, "192.0.2.2", "docker.db")
			claim(t, p, "192.0.2.3", Reservation("printer"))
			claim(t, p, "192.0.2.4", "docker.web")
			err := p.Claim(addr(tt.addr), "docker.web", nil)
			var unusable *UnusableError
			var taken *TakenError
			if errors.As(err, &unusable) != (tt.reason != "") || errors.As(err, &taken) != (tt.owner != "") || (err == nil) != (tt.reason+Reason(tt.owner) == "") {
				t.Fatalf("got %v", err)
			}
			if unusable != nil && (unusable.Reason != tt.reason || unusable.Addr != addr(tt.addr)) || taken != nil && (taken.Owner != tt.owner || taken.Addr != addr(tt.addr)) {
				t.Errorf("got %#v %#v", unusable, taken)
			}
			if tt.text != "" && err.Error() != tt.text {
				t.Errorf("got %q, want %q", err, tt.text)
			}
			want := tt.owner
			if err == nil {
				want = "docker.web"
			}
			checkOwner(t, p, addr(tt.addr), want)
		})
	}
}

// record is called before the entry is made, only for entries that are made, and its error
// ends the call.
func TestRecord(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/24")})
	errDisk := errors.New("journal is full")
	var recorded []string
	record := func(a netip.Addr) error {
		recorded = append(recorded, a.String())
		checkOwner(t, p, a, "")
		if len(recorded) > 3 {
			return errDisk
		}
		return nil
	}
	subnet := p.Subnets[0].Prefix
	claim(t, p, "192.0.2.1", "docker.other")
	_, err1 := p.Allocate(subnet, "docker.web", none, record)              // 192.0.2.2
	_, err2 := p.Allocate(subnet, "docker.web", addr("192.0.2.2"), record) // has it
	_, err3 := p.Allocate(subnet, "docker.web", addr("192.0.2.9"), record)
	err4 := p.Claim(addr("192.0.2.9"), "docker.web", record) // has it
	err5 := p.Claim(addr("192.0.2.8"), "docker.web", record)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		t.Error(err)
	}
	if err := p.Claim(addr("192.0.2.1"), "docker.web", record); !isTaken(err) {
		t.Errorf("got %v", err)
	}
	if want := "192.0.2.2 192.0.2.9 192.0.2.8"; strings.Join(recorded, " ") != want {
		t.Errorf("recorded %v, want %s", recorded, want)
	}
	_, err1 = p.Allocate(subnet, "docker.web", none, record)
	_, err2 = p.Allocate(subnet, "docker.web", addr("192.0.2.99"), record)
	err3 = p.Claim(addr("192.0.2.98"), "docker.web", record)
	for _, err := range []error{err1, err2, err3} {
		if !errors.Is(err, errDisk) {
			t.Errorf("got %v", err)
		}
	}
	if all, err := p.Entries(); err != nil || len(all) != 4 {
		t.Errorf("got %v, %v", all, err)
	}
}

// If another process takes an address after it was recorded, Allocate goes on and Claim fails. The
// undo of the record does not free the other's address.
func TestRecordRace(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/24")})
	other := func(a netip.Addr) error { return os.Symlink("docker.fast", p.path(a)) }
	var recorded []netip.Addr
	got, err := p.Allocate(p.Subnets[0].Prefix, "docker.web", none, func(a netip.Addr) error {
		recorded = append(recorded, a)
		if len(recorded) == 1 {
			return other(a)
		}
		return nil
	})
	if err != nil || got != addr("192.0.2.2") || len(recorded) != 2 {
		t.Errorf("got %s, %v, recorded %v", got, err, recorded)
	}
	for _, a := range recorded {
		release(t, p, a, "docker.web")
	}
	checkOwner(t, p, addr("192.0.2.1"), "docker.fast")
	checkOwner(t, p, got, "")

	var taken *TakenError
	if err := p.Claim(addr("192.0.2.7"), "docker.web", other); !errors.As(err, &taken) || taken.Owner != "docker.fast" {
		t.Errorf("got %v", err)
	}
}

func TestRelease(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/29")})
	web, note := addr("192.0.2.2"), addr("192.0.2.3")
	claim(t, p, web.String(), "docker.web")
	claim(t, p, note.String(), Reservation("a"))
	release(t, p, web, "docker.we")
	release(t, p, web, "")
	release(t, p, note, Reservation("b"))
	release(t, p, addr("192.0.2.4"), "docker.web")
	release(t, p, addr("203.0.113.1"), "docker.web")
	checkOwner(t, p, web, "docker.web")
	checkOwner(t, p, note, Reservation("a"))
	for range 2 {
		release(t, p, web, "docker.web")
		release(t, p, note, Reservation("a"))
	}
	checkOwner(t, p, web, "")
	checkOwner(t, p, note, "")
	gone := &Pool{Dir: filepath.Join(p.Dir, "gone"), Subnets: p.Subnets}
	release(t, gone, web, "docker.web")
}

func TestReleaseAll(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/28")}, Subnet{Prefix: prefix("2001:db8::/64")})
	for _, a := range []string{"2001:db8::9", "192.0.2.11", "192.0.2.3"} {
		claim(t, p, a, "docker.dead")
	}
	claim(t, p, "192.0.2.2", "docker.alive")
	claim(t, p, "192.0.2.4", Reservation("x"))
	got, err := p.ReleaseAll("docker.dead")
	if err != nil || fmt.Sprint(got) != "[192.0.2.3 192.0.2.11 2001:db8::9]" {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := p.ReleaseAll("docker.dead"); err != nil || len(got) > 0 {
		t.Errorf("again: got %v, %v", got, err)
	}
	all, err := p.Entries()
	if want := "[{192.0.2.2 docker.alive} {192.0.2.4 reserved/x}]"; err != nil || fmt.Sprint(all) != want {
		t.Errorf("got %v, %v, want %s", all, err, want)
	}
}

func TestFull(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/28"), Gateway: addr("192.0.2.1"), Exclude: prefixes("192.0.2.14/31")})
	for i, name := range []string{"a", "a", "b", "c", "d", "e", "f", "g"} {
		claim(t, p, fmt.Sprint("192.0.2.", i+3), Owner("docker."+name))
	}
	claim(t, p, "192.0.2.11", Reservation("x"))
	claim(t, p, "192.0.2.12", Reservation("y"))
	allocate(t, p, "docker.z", none)
	if err := p.Free(prefix("192.0.2.0/28")); err != nil {
		t.Errorf("with one free address: %v", err)
	}
	allocate(t, p, "docker.z", none)
	_, err := p.Allocate(prefix("192.0.2.0/28"), "docker.web", none, nil)
	if free := p.Free(prefix("192.0.2.0/28")); fmt.Sprint(free) != fmt.Sprint(err) {
		t.Errorf("Free: %v, Allocate: %v", free, err)
	}
	var full *FullError
	if !errors.As(err, &full) {
		t.Fatal(err)
	}
	if want := "subnet 192.0.2.0/28 has no free address: 12 taken by docker.a (2), docker.z (2), docker.b, docker.c, docker.d and 3 others, 2 of them reserved; excluded: 192.0.2.14/31"; err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	p.Subnets[0].First, p.Subnets[0].Last = addr("192.0.2.2"), addr("192.0.2.3")
	p.Subnets[0].Exclude = nil
	_, err = p.Allocate(prefix("192.0.2.0/28"), "docker.web", none, nil)
	if want := "subnet 192.0.2.0/28 has no free address from 192.0.2.2 to 192.0.2.3: 2 taken by docker.a and docker.z"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestMistakes(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/28")})
	for name, call := range map[string]func() error{
		"no such subnet": func() error { _, err := p.Allocate(prefix("192.0.2.0/29"), "docker.a", none, nil); return err },
		"empty owner":    func() error { _, err := p.Allocate(prefix("192.0.2.0/28"), "", none, nil); return err },
		"slash":          func() error { return p.Claim(addr("192.0.2.3"), "docker/a", nil) },
		"space":          func() error { return p.Claim(addr("192.0.2.3"), "docker a", nil) },
		"escape":         func() error { return p.Claim(addr("192.0.2.3"), Reservation("\x1b[31m"), nil) },
		"newline":        func() error { return p.Claim(addr("192.0.2.3"), Reservation("a\nb"), nil) },
		"not UTF-8":      func() error { return p.Claim(addr("192.0.2.3"), Reservation("\xff"), nil) },
		"long":           func() error { return p.Claim(addr("192.0.2.3"), Owner(strings.Repeat("x", 201)), nil) },
		"invalid subnet": func() error {
			return (&Pool{Dir: p.Dir, Subnets: []Subnet{{Prefix: prefix("192.0.2.0/32")}}}).Claim(addr("192.0.2.0"), "docker.a", nil)
		},
		"no directory": func() error {
			_, err := (&Pool{Dir: p.Dir + "/gone", Subnets: p.Subnets}).Allocate(prefix("192.0.2.0/28"), "docker.a", none, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(); err == nil {
				t.Error("no error")
			}
		})
	}
	if left, err := os.ReadDir(p.Dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Cycles leave nothing behind: neither files nor descriptors.
func TestCycles(t *testing.T) {
	cycles := 10000
	if testing.Short() {
		cycles = 1000
	}
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/24")})
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	release(t, p, allocate(t, p, "docker.web", none), "docker.web") // the runtime opens its own
	before := descriptors()
	for i := range cycles {
		owner := Owner(fmt.Sprint("docker.", i%2000))
		a := allocate(t, p, owner, p.Remembered(p.Subnets[0].Prefix, owner))
		if err := p.Remember(a, owner); err != nil {
			t.Fatal(err)
		}
		release(t, p, a, owner)
	}
	if after := descriptors(); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
	files, err := os.ReadDir(p.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if len(files) != 2 || size > maxNotes+headerLen+256 {
		t.Errorf("left: %v, %d bytes", files, size)
	}
}
