package remote_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"cleat/bench/remote"
)

// wrapperEnv makes the test binary stand between cleat and ssh, with a directory as its
// value. It logs each moment of the connection there, and stops at one until the test has
// done something.
const wrapperEnv = "CLEAT_REMOTE_TEST_WRAPPER"

// wrapper is the state of one connection.
type wrapper struct {
	dir, host string
	mu        sync.Mutex
	seen      map[string]int
}

func runWrapper(dir string, args []string) int {
	w := &wrapper{dir: dir, host: args[slices.Index(args, "--")+1], seen: map[string]int{}}
	ssh := exec.Command("ssh", args...)
	in, err := ssh.StdinPipe()
	if err != nil {
		panic(err)
	}
	out, err := ssh.StdoutPipe()
	if err != nil {
		panic(err)
	}
	ssh.Stderr = os.Stderr
	if err := ssh.Start(); err != nil {
		panic(err)
	}
	w.write("ssh", fmt.Sprint(ssh.Process.Pid))
	w.moment("connect")
	running := make(chan struct{})
	go w.there(in, running)
	w.back(bufio.NewReader(out), running)
	if ssh.Wait() != nil {
		return 255
	}
	return 0
}

func (w *wrapper) file(name string) string { return filepath.Join(w.dir, w.host+"."+name) }

func (w *wrapper) write(name, text string) {
	if err := os.WriteFile(w.file(name), []byte(text), 0o600); err != nil {
		panic(err)
	}
}

// moment is called at each moment, before what it is named after goes on.
func (w *wrapper) moment(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[name]++
	name = fmt.Sprintf("%s %d", name, w.seen[name])
	log, err := os.OpenFile(w.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(log, name)
	log.Close()
	if stop, err := os.ReadFile(w.file("stop")); err != nil || string(stop) != name {
		return
	}
	w.write("reached", name)
	for {
		if _, err := os.Stat(w.file("go")); err == nil {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// there passes what goes to the machine.
func (w *wrapper) there(in io.WriteCloser, running <-chan struct{}) {
	defer in.Close()
	from := bufio.NewReader(os.Stdin)
	buf := make([]byte, 64<<10)
	for sent := 0; ; {
		select {
		case <-running:
			for {
				m, err := remote.ReadMessage(from)
				if err != nil {
					return
				}
				w.moment("> " + string(m.Op))
				if remote.WriteMessage(in, m) != nil {
					return
				}
			}
		default:
		}
		if from.Buffered() == 0 {
			if _, err := from.Peek(1); err != nil {
				return
			}
			select {
			case <-running:
				continue
			default:
			}
		}
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if sent < 1<<20 && sent+n >= 1<<20 {
			w.moment("upload")
		}
		sent += n
		if _, err := in.Write(buf[:n]); err != nil {
			return
		}
	}
}

// back passes what comes from the machine.
func (w *wrapper) back(out *bufio.Reader, running chan<- struct{}) {
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			return
		}
		words := strings.Fields(line)
		w.moment("< " + words[1])
		if words[1] == "run" {
			close(running)
		}
		fmt.Print(line)
		if words[1] == "run" {
			break
		}
	}
	for {
		m, err := remote.ReadMessage(out)
		if err != nil {
			return
		}
		w.moment("< " + string(m.Op))
		if remote.WriteMessage(os.Stdout, m) != nil {
			return
		}
	}
}
