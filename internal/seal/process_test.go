package seal

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"cleat/internal/sys"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// childArg makes the test binary a process that seals itself: PROGRAM childArg [refused].
const childArg = "seal-yourself"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		if len(os.Args) > 2 {
			if err := refuseFilters(); err != nil {
				fmt.Println(err)
			}
		}
		s, err := Process(Config{Calls: Runtime()})
		s.LandlockABI = 0 // from /proc/self/status
		_, write := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		fmt.Printf("%+v\n%v\nwrite: %v\n", s, err, errors.Is(write, os.ErrPermission))
		return
	}
	os.Exit(m.Run())
}

// refuseFilters makes the kernel refuse seccomp filters, as container engines do.
func refuseFilters() error {
	f, err := bpf.Assemble([]bpf.Instruction{
		number,
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SECCOMP, SkipFalse: 1},
		deny,
		allow,
	})
	if err != nil {
		return err
	}
	return errors.Join(sys.SetNoNewPrivileges(), sys.SetSeccomp(f))
}

func TestProcess(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"sealed", nil, []string{"NoNewPrivileges:true Dumpable:false Seccomp:true", "<nil>", "write: true"}},
		{"where filters are refused", []string{"refused"},
			[]string{"NoNewPrivileges:true Dumpable:false Seccomp:false", "set seccomp filter: operation not permitted"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), self, append([]string{childArg}, tt.args...)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, want := range append(tt.want, "{Capabilities:0 ") {
				if !strings.Contains(string(out), want) {
					t.Errorf("it said\n%s\nwant %q", out, want)
				}
			}
		})
	}
}
