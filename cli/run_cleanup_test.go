package cli

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKilledRunLeavesNothing kills `cleat run` at moments at which different things
// exist. A command that has started lives on; the test ends it.
func TestKilledRunLeavesNothing(t *testing.T) {
	if !canRun() {
		t.Skip("cleat run does not work here")
	}
	for _, after := range []time.Duration{0, 3 * time.Millisecond, 8 * time.Millisecond, 13 * time.Millisecond, 18 * time.Millisecond, -1} {
		name := after.String()
		if after < 0 {
			name = "when the command has begun"
		}
		t.Run(name, func(t *testing.T) {
			before := traces(t)
			cmd := exec.Command(filepath.Join(binDir, "cleat"), "run", "-p", "127.0.0.1::80", "--", "sh", "-c", "echo $$; exec sleep 1000")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(out)
			pid := ""
			if after < 0 {
				if pid, err = lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			} else {
				time.Sleep(after) // this waits for nothing: it sets the moment
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if pid == "" {
				pid, _ = lines.ReadString('\n') // the command may have started, or never will
			}
			if n, err := strconv.Atoi(strings.TrimSpace(pid)); err == nil {
				if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
					t.Errorf("end the command: %v", err)
				}
			}
			cmd.Wait() // the error says that it was killed
			settled(t, before)
		})
	}
}
