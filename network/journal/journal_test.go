package journal_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cleat/network/journal"
)

// helperEnv makes the test binary write a journal and kill itself.
const helperEnv = "CLEAT_TEST_JOURNAL"

func TestMain(m *testing.M) {
	if path := os.Getenv(helperEnv); path != "" {
		os.Exit(writeAndDie(path))
	}
	os.Exit(m.Run())
}

func writeAndDie(path string) int {
	j, err := journal.Create(path)
	if err == nil {
		err = j.Append("one")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	fmt.Fprintln(os.Stderr, err)
	select {} // until the signal arrives
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func texts(t *testing.T, path string) []string {
	t.Helper()
	all, err := journal.Read(path)
	must(t, err)
	var out []string
	for _, r := range all {
		out = append(out, string(r))
	}
	return out
}

func TestAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, err := journal.Create(path)
	must(t, err)
	defer j.Close()
	must(t, j.Append(map[string]int{"a": 1}))
	must(t, j.Append("line\nbreak"))
	if got, want := texts(t, path), []string{`{"a":1}`, `"line\nbreak"`}; !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
}

func TestOwnedJournalCannotBeOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, err := journal.Create(path)
	must(t, err)
	if _, err := journal.Create(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create a journal that exists: %v", err)
	}
	if _, err := journal.Open(path); !errors.Is(err, journal.ErrOwned) {
		t.Errorf("open an owned journal: %v", err)
	}
	must(t, j.Close())
	taken, err := journal.Open(path)
	must(t, err)
	must(t, taken.Remove())
	if _, err := journal.Open(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open a removed journal: %v", err)
	}
}

func TestOpenAfterOwnerDied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+path)
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("the helper was not killed: %v", err)
	}
	j, err := journal.Open(path)
	must(t, err)
	defer j.Close()
	if got := texts(t, path); !slices.Equal(got, []string{`"one"`}) {
		t.Errorf("records %q, want one", got)
	}
}

func TestPartialRecordIsCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	must(t, os.WriteFile(path, []byte("\"one\"\n{\"tw"), 0o600))
	if got := texts(t, path); !slices.Equal(got, []string{`"one"`}) {
		t.Errorf("read %q", got)
	}
	j, err := journal.Open(path)
	must(t, err)
	defer j.Close()
	must(t, j.Append("two"))
	if got := texts(t, path); !slices.Equal(got, []string{`"one"`, `"two"`}) {
		t.Errorf("records after another append: %q", got)
	}
}

func TestDamagedRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	must(t, os.WriteFile(path, []byte("\"one\"\nnonsense\n\"two\"\n"), 0o600))
	all, err := journal.Read(path)
	if !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), "line 2 ") || len(all) != 2 {
		t.Errorf("read %q, %v", all, err)
	}
	j, err := journal.Open(path)
	must(t, err)
	defer j.Close()
	must(t, j.Clear())
	must(t, j.Append("three"))
	if got := texts(t, path); !slices.Equal(got, []string{`"three"`}) {
		t.Errorf("records after clear and append: %q", got)
	}
}

func TestRenamedJournalStaysOwned(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	j, err := journal.Create(from)
	must(t, err)
	must(t, j.Append("one"))
	must(t, j.Rename(to))
	if _, err := journal.Open(to); !errors.Is(err, journal.ErrOwned) {
		t.Errorf("open an owned journal: %v", err)
	}
	must(t, j.Append("two"))
	must(t, j.Close())
	if got := texts(t, to); !slices.Equal(got, []string{`"one"`, `"two"`}) {
		t.Errorf("records %q", got)
	}
	if _, err := os.Stat(from); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old name still exists: %v", err)
	}
}

// A journal that its living owner ends is not one whose operation died, whenever one looks.
func TestWaitForLivingOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "op")
	for range 2000 {
		j, err := journal.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- j.Remove() }()
		if waited, err := journal.WaitForOwner(t.Context(), path); err != nil || !waited {
			t.Fatalf("waited %t, %v", waited, err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}
