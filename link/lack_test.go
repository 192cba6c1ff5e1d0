package link

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func TestLack(t *testing.T) {
	const release = "6.1.0-1-amd64"
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	ipvlan := requirement{option: "CONFIG_IPVLAN", module: "ipvlan", since: "3.19"}
	openTun := func(errno error) error { return &os.PathError{Op: "open", Path: tunDevice, Err: errno} }
	for _, tt := range []struct {
		name           string
		files          fstest.MapFS
		need           requirement
		err            error
		reason, remedy string // parts of them
	}{
		{"built without", fstest.MapFS{"boot/config-" + release: file("# CONFIG_IPVLAN is not set\n")}, ipvlan, unix.EOPNOTSUPP,
			"built without CONFIG_IPVLAN", "linux-image-"},
		{"built without, by /proc", fstest.MapFS{"proc/config.gz": file(gzipped("CONFIG_VETH=y\n"))}, ipvlan, unix.EOPNOTSUPP,
			"built without CONFIG_IPVLAN", "linux-image-"},
		{"not loaded", fstest.MapFS{"boot/config-" + release: file("CONFIG_IPVLAN=m\n"),
			"lib/modules/" + release + "/modules.dep": file("kernel/drivers/net/ipvlan/ipvlan.ko.xz: \n")}, ipvlan, unix.EOPNOTSUPP,
			"not loaded", "modprobe ipvlan"},
		{"not installed", fstest.MapFS{"boot/config-" + release: file("CONFIG_IPVLAN=m\n")}, ipvlan, unix.EOPNOTSUPP,
			"not installed for Linux " + release, "apt install linux-image-" + release},
		{"no configuration", fstest.MapFS{}, ipvlan, unix.EOPNOTSUPP, "does not support", "modprobe ipvlan; failing that, a kernel with CONFIG_IPVLAN"},
		{"built in but refused", fstest.MapFS{"boot/config-" + release: file("CONFIG_IPVLAN=y\n")}, ipvlan, unix.EOPNOTSUPP, "built in", ""},
		{"too old", fstest.MapFS{}, requirement{option: "CONFIG_NETKIT", since: "6.7"}, unix.EOPNOTSUPP, "6.7 is the first release", "a kernel of 6.7 or later"},
		{"no module of its own", fstest.MapFS{"boot/config-" + release: file("CONFIG_BRIDGE=m\n")}, requirement{option: "CONFIG_BRIDGE_VLAN_FILTERING"}, unix.EOPNOTSUPP,
			"built without CONFIG_BRIDGE_VLAN_FILTERING", "linux-image-"},
		{"privilege", fstest.MapFS{}, ipvlan, fmt.Errorf("create: %w", unix.EPERM), "CAP_NET_ADMIN", "run as root"},
		{"missing program", fstest.MapFS{}, requirement{programs: "openvswitch-switch"}, &exec.Error{Name: "ovs-vsctl", Err: exec.ErrNotFound},
			"ovs-vsctl", "apt install openvswitch-switch"},
		{"device without permission", fstest.MapFS{}, requirement{}, openTun(unix.EACCES), "not readable", "chmod 0666 /dev/net/tun"},
		{"missing device", fstest.MapFS{}, requirement{}, openTun(unix.ENOENT), "/dev/net/tun does not exist", "mknod"},
		{"device without driver", fstest.MapFS{}, requirement{}, openTun(unix.ENODEV), "does not support", "modprobe tun"},
		{"other error", fstest.MapFS{}, ipvlan, unix.ENOMEM, unix.ENOMEM.Error(), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := system{root: tt.files, release: release}.lack("some", tt.need, tt.err)
			if !strings.Contains(l.Reason, tt.reason) || !strings.Contains(l.Remedy, tt.remedy) || tt.remedy == "" && l.Remedy != "" {
				t.Errorf("got reason %q, remedy %q\nwant %q, %q", l.Reason, l.Remedy, tt.reason, tt.remedy)
			}
		})
	}
}

func gzipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte(s))
	z.Close()
	return b.String()
}

func TestOlder(t *testing.T) {
	for _, tt := range []struct {
		release, than string
		want          bool
	}{
		{"6.1.0-50-amd64", "6.7", true}, {"6.12.107+deb13-amd64", "6.7", false}, {"6.7.0", "6.7", false},
		{"5.15", "6.1", true}, {"7.2-rc1", "6.15", false}, {"10.0", "6.1", false},
	} {
		if got := older(tt.release, tt.than); got != tt.want {
			t.Errorf("older(%q, %q) = %v", tt.release, tt.than, got)
		}
	}
}

func TestTooOld(t *testing.T) {
	s := system{release: "5.4.0-26-generic"}
	want := "networks: Linux 5.4.0-26-generic is too old: 5.7 is the first release with it (a kernel of 5.7 or later)"
	if l := s.tooOld("networks", "5.7"); l == nil || l.Error() != want {
		t.Errorf("got %v, want %s", l, want)
	}
	for _, since := range []string{"5.4", "4.19", ""} {
		if l := s.tooOld("networks", since); l != nil {
			t.Errorf("since %q: %v", since, l)
		}
	}
}

// TestAsParamError has the kernel point at each offset of a request in turn.
func TestAsParamError(t *testing.T) {
	s := MacvlanSpec{Attrs: Attrs{Name: "probe", MTU: 1500, MAC: MAC{2}}, Mode: MacvlanSource, BroadcastQueueLen: 7, Sources: ListOf(MAC{2})}
	inner, err := encodeFields("macvlan", s.params(), nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := nest(unix.IFLA_INFO_DATA, inner)
	if err != nil {
		t.Fatal(err)
	}
	info, err := nest(unix.IFLA_LINKINFO, []attribute{stringAttr(unix.IFLA_INFO_KIND, "macvlan"), data})
	if err != nil {
		t.Fatal(err)
	}
	top := append(s.attributes(), info)
	message, err := pack(top)
	if err != nil {
		t.Fatal(err)
	}
	const header = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	q := request{kind: "macvlan", attrs: s.Attrs, fields: s.params()}
	found := map[string]bool{}
	for offset := range len(message) {
		err := asParamError(q, top, opError("no", header+offset))
		var p *ParamError
		if errors.As(err, &p) {
			found[p.Param] = true
			if !strings.HasSuffix(p.Allowed, "the kernel says: no") {
				t.Errorf("the kernel's message is missing: %v", err)
			}
		} else if !errors.Is(err, unix.EINVAL) {
			t.Errorf("offset %d: %v does not wrap the error number", offset, err)
		}
	}
	for _, want := range []string{"mode", "sources", "bc_queue_len", "mtu", "mac"} {
		if !found[want] {
			t.Errorf("no offset is attributed to parameter %s", want)
		}
	}
	if len(found) != 5 {
		t.Errorf("found parameters %v, want five", found)
	}
}

func opError(message string, offset int) error {
	return &netlink.OpError{Op: "receive", Err: unix.EINVAL, Message: message, Offset: offset}
}
