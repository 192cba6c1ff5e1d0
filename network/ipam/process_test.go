package ipam

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cleat/internal/program"
)

// workerEnv makes the test binary one of the workers below instead of running tests.
const workerEnv = "CLEAT_IPAM_WORKER"

func TestMain(m *testing.M) {
	switch os.Getenv(workerEnv) {
	case "once":
		exitWith(allocateOnce(os.Args[1], os.Args[2]))
	case "churn":
		exitWith(churn(os.Args[1], os.Args[2], os.Args[3]))
	case "scenario":
		exitWith(scenario(os.Args[1]))
	}
	os.Exit(m.Run())
}

func exitWith(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func workerPool(dir string) *Pool {
	return &Pool{Dir: filepath.Join(dir, "addresses"), Subnets: []Subnet{{Prefix: prefix("192.0.2.0/25"), Gateway: addr("192.0.2.1")}}}
}

// capacity is the number of addresses of workerPool.
const capacity = 128 - 3

// newWorkerDir returns the directory that workers share.
func newWorkerDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"addresses", "witnesses", "journals"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// worker returns the command that runs a worker, perhaps through another program.
func worker(kind string, command ...string) *exec.Cmd {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), workerEnv+"="+kind)
	cmd.Stderr = os.Stderr
	return cmd
}

// allocateOnce waits for the end of standard input, then allocates and prints the address.
func allocateOnce(dir, owner string) error {
	if _, err := io.ReadAll(os.Stdin); err != nil {
		return err
	}
	p := workerPool(dir)
	a, err := p.Allocate(p.Subnets[0].Prefix, Owner(owner), netip.Addr{}, nil)
	fmt.Println(a)
	return err
}

// TestProcessesAtOnce: 100 processes that allocate at the same time get 100 addresses.
func TestProcessesAtOnce(t *testing.T) {
	const n = 100
	dir := newWorkerDir(t)
	start, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var outputs []*strings.Builder
	var workers []*exec.Cmd
	for i := range n {
		cmd, out := worker("once", os.Args[0], dir, fmt.Sprint("docker.", i)), new(strings.Builder)
		cmd.Stdin, cmd.Stdout = start, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		workers, outputs = append(workers, cmd), append(outputs, out)
	}
	start.Close()
	release.Close()
	owners := map[string]int{}
	for i, cmd := range workers {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v: %s", i, err, outputs[i])
		}
		a := strings.TrimSpace(outputs[i].String())
		if other, ok := owners[a]; ok {
			t.Errorf("processes %d and %d both have %s", i, other, a)
		}
		owners[a] = i
		checkOwner(t, workerPool(dir), addr(a), Owner(fmt.Sprint("docker.", i)))
	}
}

// TestGoroutinesAtOnce: the same in one process, until the pool is full.
func TestGoroutinesAtOnce(t *testing.T) {
	p := workerPool(newWorkerDir(t))
	got := make([]netip.Addr, capacity)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			a, err := p.Allocate(p.Subnets[0].Prefix, Owner(fmt.Sprint("docker.", i)), netip.Addr{}, nil)
			if err != nil {
				t.Error(err)
			}
			got[i] = a
		})
	}
	all.Wait()
	for i, a := range got {
		checkOwner(t, p, a, Owner(fmt.Sprint("docker.", i)))
	}
	var full *FullError
	if _, err := p.Allocate(p.Subnets[0].Prefix, "docker.more", netip.Addr{}, nil); !errors.As(err, &full) || full.Taken != capacity {
		t.Errorf("got %v", err)
	}
}

// TestReleaseTwice: an owner's address is released several times at once, as by a repeated undo,
// while another owner claims it. The other owner keeps it.
func TestReleaseTwice(t *testing.T) {
	rounds := 2000
	if testing.Short() {
		rounds = 200
	}
	p := workerPool(newWorkerDir(t))
	a := addr("192.0.2.9")
	for range rounds {
		claim(t, p, a.String(), "docker.old")
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := p.Release(a, "docker.old"); err != nil {
					t.Error(err)
				}
			})
		}
		for isTaken(p.Claim(a, "docker.new", nil)) {
			runtime.Gosched()
		}
		all.Wait()
		if checkOwner(t, p, a, "docker.new"); t.Failed() {
			return
		}
		release(t, p, a, "docker.new")
	}
}

// TestRebuildAndRelease: an address that is released during a rebuild is free in the hint.
func TestRebuildAndRelease(t *testing.T) {
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	p := workerPool(newWorkerDir(t))
	h := p.openHint(&p.Subnets[0], os.O_CREATE)
	defer h.close()
	for range rounds {
		a := allocate(t, p, "docker.web", none)
		var all sync.WaitGroup
		all.Go(func() {
			if err := p.rebuild(h, true); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := p.Release(a, "docker.web"); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		if checkHint(t, p); t.Failed() {
			return
		}
	}
}

// churner allocates, claims and releases addresses until it is killed. It has a witness of
// each address that it has been given: a file that only one process can have.
type churner struct {
	pool    *Pool
	owner   Owner
	dir     string
	journal *os.File
	held    []netip.Addr
	random  *rand.Rand
}

func churn(dir, owner, seed string) error {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	journal, err := openJournal(dir, owner)
	if err != nil {
		return err
	}
	c := &churner{pool: workerPool(dir), owner: Owner(owner), dir: dir, journal: journal, random: rand.New(rand.NewPCG(n, 1))}
	for {
		if err := c.step(); err != nil {
			return err
		}
		fmt.Println("step")
	}
}

func openJournal(dir, owner string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, "journals", owner), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}

func (c *churner) record(a netip.Addr) error {
	_, err := fmt.Fprintln(c.journal, a)
	return err
}

func (c *churner) witness(a netip.Addr) string {
	return filepath.Join(c.dir, "witnesses", a.String())
}

func (c *churner) step() error {
	subnet := c.pool.Subnets[0]
	switch some := plus(subnet.Prefix.Addr(), uint64(2+c.random.IntN(capacity))); {
	case len(c.held) > 0 && c.random.IntN(30) < len(c.held):
		i := c.random.IntN(len(c.held))
		a := c.held[i]
		c.held = slices.Delete(c.held, i, i+1)
		return c.release(a)
	case c.random.IntN(4) > 0:
		a, err := c.pool.Allocate(subnet.Prefix, c.owner, netip.Addr{}, c.record)
		var full *FullError
		if errors.As(err, &full) {
			return nil
		}
		return c.hold(a, err)
	case !slices.Contains(c.held, some):
		err := c.pool.Claim(some, c.owner, c.record)
		var taken *TakenError
		if errors.As(err, &taken) {
			return nil
		}
		return c.hold(some, err)
	}
	return nil
}

func (c *churner) hold(a netip.Addr, err error) error {
	if err != nil {
		return err
	}
	c.held = append(c.held, a)
	if err := os.Symlink(string(c.owner), c.witness(a)); err != nil {
		return fmt.Errorf("%s has two owners: %w", a, err)
	}
	return nil
}

func (c *churner) release(a netip.Addr) error {
	if owner, err := c.pool.Owner(a); err != nil || owner != c.owner {
		return fmt.Errorf("%s has been lost to %q: %w", a, owner, err)
	}
	// Only after this may others have the address.
	if err := os.Remove(c.witness(a)); err != nil {
		return err
	}
	if err := c.pool.Remember(a, c.owner); err != nil {
		return err
	}
	return c.pool.Release(a, c.owner)
}

// TestKilledProcesses kills processes at random moments, while others go on.
func TestKilledProcesses(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 3
	}
	dir := newWorkerDir(t)
	var slots sync.WaitGroup
	for slot := range 6 {
		slots.Go(func() {
			random := rand.New(rand.NewPCG(uint64(slot), 2))
			for round := range rounds {
				owner := fmt.Sprintf("docker.%d-%d", slot, round)
				if !runAndKill(t, worker("churn", os.Args[0], dir, owner, strconv.FormatUint(random.Uint64(), 10)), 1+random.IntN(400)) {
					return
				}
				repair(t, dir, Owner(owner), round%2 == 0)
			}
		})
	}
	slots.Wait()
	p := workerPool(dir)
	if all, err := p.Entries(); err != nil || len(all) > 0 {
		t.Errorf("left: %v, %v", all, err)
	}
	if all := allocateAll(t, p, "docker.after"); len(all) != capacity {
		t.Errorf("%d addresses can be allocated, want %d", len(all), capacity)
	}
	checkHint(t, p)
}

// runAndKill kills a worker after a number of steps, in the middle of whatever it does then.
func runAndKill(t *testing.T, cmd *exec.Cmd, steps int) bool {
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return false
	}
	lines := bufio.NewScanner(out)
	for steps > 0 && lines.Scan() && lines.Text() == "step" {
		steps--
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if steps > 0 {
		t.Errorf("worker: %q", lines.Text())
	}
	_ = cmd.Wait() // it was killed
	return steps == 0
}

// repair frees what a killed worker had, from its journal or without it.
func repair(t *testing.T, dir string, owner Owner, fromJournal bool) {
	p := workerPool(dir)
	witnesses, err := filepath.Glob(filepath.Join(dir, "witnesses", "*"))
	if err != nil {
		t.Error(err)
	}
	for _, w := range witnesses {
		if o, err := os.Readlink(w); err == nil && Owner(o) == owner {
			if err := os.Remove(w); err != nil {
				t.Error(err)
			}
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	if fromJournal {
		text, err := os.ReadFile(filepath.Join(dir, "journals", string(owner)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		for line := range strings.Lines(string(text)) {
			if err := p.Release(addr(strings.TrimSpace(line)), owner); err != nil {
				t.Error(err)
			}
		}
	} else if _, err := p.ReleaseAll(owner); err != nil {
		t.Error(err)
	}
	all, err := p.Entries()
	if err != nil {
		t.Error(err)
	}
	for _, e := range all {
		if e.Owner == owner {
			t.Errorf("%s still has %s", owner, e.Addr)
		}
	}
}

// scenario makes every kind of change once, on one thread.
func scenario(dir string) error {
	runtime.LockOSThread()
	journal, err := openJournal(dir, "docker.dying")
	if err != nil {
		return err
	}
	c := churner{pool: workerPool(dir), journal: journal}
	p, subnet := c.pool, c.pool.Subnets[0].Prefix
	a, err := p.Allocate(subnet, "docker.dying", netip.Addr{}, c.record)
	if err != nil {
		return err
	}
	_, err = p.Allocate(subnet, "docker.dying", addr("192.0.2.99"), c.record)
	return errors.Join(err,
		p.Claim(addr("192.0.2.77"), "docker.dying", c.record),
		p.Remember(a, "docker.dying"),
		p.Release(a, "docker.dying"))
}

// TestKilledAtEachSystemCall kills a process right before each of the system calls that change
// something.
func TestKilledAtEachSystemCall(t *testing.T) {
	strace, err := program.Find("strace")
	if err != nil {
		t.Skip("strace is not installed")
	}
	if testing.Short() {
		t.Skip("it takes 10 s")
	}
	if out, err := exec.Command(strace, "-o", "/dev/null", "true").CombinedOutput(); err != nil {
		t.Skipf("strace can't trace here: %s", out)
	}
	for _, call := range []string{"openat", "flock", "symlinkat", "unlinkat", "pwrite64", "ftruncate", "write", "renameat"} {
		t.Run(call, func(t *testing.T) {
			kills := 0
			for ; killAt(t, strace, call, kills+1); kills++ {
			}
			if kills == 0 {
				t.Error("the call was never made")
			}
			t.Logf("killed at %d calls", kills)
		})
	}
}

// killAt runs scenario and kills it at the nth system call of a kind. It reports whether there
// were as many.
func killAt(t *testing.T, strace, call string, n int) bool {
	dir := newWorkerDir(t)
	p := workerPool(dir)
	for _, a := range []string{"192.0.2.2", "192.0.2.4", "192.0.2.78"} {
		claim(t, p, a, "docker.other")
	}
	if err := os.Remove(hintPath(p.Dir, p.Subnets[0].Prefix)); err != nil { // so that scenario makes it
		t.Fatal(err)
	}
	if err := os.WriteFile(p.notesPath(), []byte(strings.Repeat("docker.other 192.0.2.2\n", maxNotes/23)), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := worker("scenario", strace, "-f", "-o", "/dev/null", "-e", "trace="+call,
		"-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", call, n), os.Args[0], dir)
	out, err := cmd.Output()
	if len(out) > 0 || err != nil && !strings.Contains(err.Error(), "killed") {
		t.Fatalf("%v: %s", err, out)
	}
	h := p.openHint(&p.Subnets[0], 0)
	defer h.close()
	if valid := h.load(); valid && bytes.Count(hintBytes(t, p), []byte{1}) < 3 {
		t.Error("the hint is valid although it was only written in part")
	}
	repair(t, dir, "docker.dying", n%2 == 0)
	if got := p.Remembered(p.Subnets[0].Prefix, "docker.other"); got != addr("192.0.2.2") {
		t.Errorf("remembered: got %s", got)
	}
	if all := allocateAll(t, p, "docker.after"); len(all) != capacity-3 {
		t.Errorf("%d addresses can be allocated, want %d", len(all), capacity-3)
	}
	checkHint(t, p)
	if all, err := p.ReleaseAll("docker.other"); err != nil || len(all) != 3 {
		t.Errorf("another owner had %v, %v", all, err)
	}
	return err != nil
}
