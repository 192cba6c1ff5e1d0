package guesttest

import (
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Descriptors is the number of open files of this process.
func Descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatalf("count open files: %v", err)
	}
	return len(all) - 1 // without the one that reads
}

// warm opens once what the Go runtime keeps for ever.
var warm = sync.OnceFunc(func() {
	if l, err := net.Listen("tcp4", "127.0.0.1:0"); err == nil {
		l.Close()
	}
})

// NoLeaks fails the test if, at its end, it has left files open or goroutines
// running. Call it first of all: what is cleaned up later is not seen.
func NoLeaks(t testing.TB) {
	t.Helper()
	warm()
	files, goroutines := Descriptors(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		// Goroutines that were told to end need a moment for it.
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); runtime.Gosched() {
			if Descriptors(t) <= files && runtime.NumGoroutine() <= goroutines {
				return
			}
		}
		if n := Descriptors(t); n > files {
			t.Errorf("%d open files, %d at the start", n, files)
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			t.Errorf("%d goroutines, %d at the start", n, goroutines)
		}
	})
}
