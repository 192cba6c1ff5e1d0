package guesttest

import (
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Descriptors returns the number of open files of this process.
func Descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatalf("count open files: %v", err)
	}
	return len(all) - 1 // without the one being read
}

// openRuntimeFiles makes the Go runtime open the files that it never closes.
var openRuntimeFiles = sync.OnceFunc(func() {
	if l, err := net.Listen("tcp4", "127.0.0.1:0"); err == nil {
		l.Close()
	}
})

// NoLeaks fails the test if it leaves files open or goroutines running at its end. Call
// it first: it does not see what is cleaned up later.
func NoLeaks(t testing.TB) {
	t.Helper()
	openRuntimeFiles()
	files, goroutines := Descriptors(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		// Goroutines that are ending need a moment.
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
