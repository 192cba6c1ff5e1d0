package remote

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"cleat/internal/program"
)

// Options say how to reach machines.
type Options struct {
	SSH  []string // the program and its first arguments; nil: ssh
	Root bool     // the agent must be root
}

const (
	// answerLimit bounds the wait for an answer of the script, when nobody can be asked.
	answerLimit = 60 * time.Second
	// uploadLimit bounds the transfer of this program: 0.4 Mbit/s carry it in time.
	uploadLimit = 10 * time.Minute
	// closeLimit bounds the orderly end of a connection: an agent stops programs and
	// removes networks meanwhile.
	closeLimit = 10 * time.Second
)

// session is an ssh process whose other end runs the script and then the agent.
type session struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *tail
	ended  chan struct{} // closed when the process has ended
	status error         // valid after that
}

// arguments returns the arguments of ssh. Host keys are never accepted silently: without
// a terminal an unknown one is refused, with one ssh asks, unless the user's configuration
// refuses there, too.
func (o Options) arguments(ctx context.Context, a Address, asks bool) []string {
	args := slices.Clone(o.SSH[1:])
	batch, strict := "yes", "yes"
	if asks {
		batch = "no"
		if !strictByConfiguration(ctx, o.SSH, a) {
			strict = "ask"
		}
	}
	for _, option := range []string{
		"BatchMode=" + batch, "StrictHostKeyChecking=" + strict, "ConnectTimeout=15",
		"ServerAliveInterval=5", "ServerAliveCountMax=3",
		"ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "RequestTTY=no", "PermitLocalCommand=no", "RemoteCommand=none",
	} {
		args = append(args, "-o", option)
	}
	return append(args, a.arguments()...)
}

// strictByConfiguration reports whether the user's configuration refuses unknown host
// keys.
func strictByConfiguration(ctx context.Context, ssh []string, a Address) bool {
	args := append(append(slices.Clone(ssh[1:]), "-G"), a.arguments()...)
	text, err := program.CommandContext(ctx, ssh[0], args...).Output()
	if err != nil {
		return false
	}
	return bytes.Contains(text, []byte("\nstricthostkeychecking true\n"))
}

// open connects to a machine, sends this program there and runs it. The error is a
// *Refused where the machine can't run it, or an *SSHError.
func (o Options) open(ctx context.Context, a Address) (_ *session, err error) {
	if len(o.SSH) == 0 {
		o.SSH = []string{"ssh"}
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("open this program: %w", err)
	}
	defer self.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, self)
	if err == nil {
		_, err = self.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, fmt.Errorf("read this program: %w", err)
	}
	mark := "cleat-" + rand.Text()
	term := foreground()
	args := append(o.arguments(ctx, a, term != nil), bootstrap(mark, size, fmt.Sprintf("%x", hash.Sum(nil)), o.Root))
	s := &session{cmd: program.Command(o.SSH[0], args...), stderr: &tail{}, ended: make(chan struct{})}
	if err := s.start(term); err != nil {
		term.restore()
		return nil, &SSHError{Address: a, Text: err.Error()}
	}
	defer term.restore()
	defer func() {
		if err != nil {
			s.kill()
		}
	}()
	defer context.AfterFunc(ctx, s.kill)()
	err = s.greet(ctx, a, mark, term, self)
	if errors.Is(err, errInterrupted) {
		interrupt(ctx)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return s, err
}

func (s *session) start(term *terminal) error {
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	s.cmd.Stdout, s.cmd.Stderr = in, s.stderr
	// A master connection that the user's configuration starts may keep standard error
	// open for longer than ssh runs.
	s.cmd.WaitDelay = time.Second
	s.cmd.SysProcAttr = term.attributes()
	s.out = bufio.NewReaderSize(out, 64<<10)
	err = s.cmd.Start()
	in.Close()
	if err != nil {
		out.Close()
		return err
	}
	go func() {
		s.status = s.cmd.Wait()
		if errors.Is(s.status, exec.ErrWaitDelay) {
			s.status = nil
		}
		close(s.ended)
	}()
	return nil
}

// kill ends the process at once.
func (s *session) kill() { s.cmd.Process.Kill() }

// settle waits a moment for what ssh says after the end of its output.
func (s *session) settle() {
	select {
	case <-s.ended:
	case <-time.After(time.Second):
	}
}

// close ends the process in order: the other end sees the end of its input. It returns an
// error if the other end did not confirm its own end.
func (s *session) close() error {
	s.in.Close()
	select {
	case <-s.ended:
		if s.status != nil {
			return fmt.Errorf("the connection ended before the agent did: %w", s.status)
		}
		return nil
	case <-time.After(closeLimit):
		s.kill()
		<-s.ended
		return fmt.Errorf("the agent did not end within %s", closeLimit)
	}
}

// greet goes through the script with the other end.
func (s *session) greet(ctx context.Context, a Address, mark string, term *terminal, self io.Reader) error {
	words, err := s.answer(a, mark, term == nil)
	if err != nil {
		return err
	}
	term.restore() // nobody is asked any more: Ctrl-C is for this process again
	node := a.String()
	if len(words) == 3 && words[0] == "arch" {
		if words[1] != "Linux" || !slices.Contains(machines(), words[2]) {
			return &Refused{node, fmt.Sprintf("it runs %s on %s, and this program is for Linux on %s", words[1], words[2], machines()[0]),
				"run a benchmark between machines of one architecture"}
		}
		words, err = s.answer(a, mark, true)
		if err != nil {
			return err
		}
	}
	if words[0] != "send" {
		return refusal(node, words[1:])
	}
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(s.in, self)
		sent <- err
	}()
	select {
	case err = <-sent:
	case <-s.ended:
		err = io.ErrUnexpectedEOF
	case <-time.After(uploadLimit):
		err = fmt.Errorf("it took longer than %s", uploadLimit)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err != nil {
		return s.failure(a, fmt.Sprintf("send this program: %v", err))
	}
	words, err = s.answer(a, mark, true)
	if err != nil {
		return err
	}
	if words[0] != "run" {
		return refusal(node, words[1:])
	}
	return nil
}

// maxNoise bounds what a login shell may print, in bytes.
const maxNoise = 1 << 20

// answer returns the words of the script's next line. With limited it waits for
// answerLimit at most.
func (s *session) answer(a Address, mark string, limited bool) ([]string, error) {
	if limited {
		defer time.AfterFunc(answerLimit, s.kill).Stop()
	}
	for read := 0; read < maxNoise; {
		line, err := s.out.ReadString('\n')
		read += len(line)
		if words := strings.Fields(line); err == nil && len(words) > 1 && words[0] == mark {
			return words[1:], nil
		}
		if err != nil {
			return nil, s.failure(a, "the connection ended before this program ran")
		}
	}
	return nil, s.failure(a, "its login shell prints too much")
}

// failure returns the error of a session that ended, by what ssh said.
func (s *session) failure(a Address, otherwise string) error {
	s.in.Close()
	select {
	case <-s.ended:
	case <-time.After(closeLimit):
		s.kill()
		<-s.ended
	}
	var exit *exec.ExitError
	if errors.As(s.status, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGINT {
		return errInterrupted
	}
	return &SSHError{Address: a, Text: s.stderr.String(), Otherwise: otherwise}
}

// errInterrupted: Ctrl-C on the terminal went to ssh, which asked there.
var errInterrupted = errors.New("interrupted")

// interrupt does what Ctrl-C does if this process has the terminal, and waits until ctx has
// noticed, for a second at most: whoever made ctx may not care for signals.
func interrupt(ctx context.Context) {
	syscall.Kill(os.Getpid(), syscall.SIGINT)
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

// SSHError: ssh did not connect, or the connection ended.
type SSHError struct {
	Address   Address
	Text      string // what ssh and the other machine printed
	Otherwise string // what happened, if nothing was printed
}

func (e *SSHError) Error() string {
	node := e.Address.String()
	switch {
	case e.changed():
		return node + ": the machine's host key is not the one that is known: it was installed anew, or somebody else answers"
	case e.unknown():
		return node + ": the machine's host key is not known"
	case strings.TrimSpace(e.Text) == "":
		return node + ": " + e.Otherwise
	}
	return node + ": " + lastWords(e.Text)
}

// Prefixes of what this program prints on the other machine.
const (
	errorPrefix = "cleat: error: "
	hintPrefix  = "cleat: hint: "
)

// lastWords returns the error that this program has printed on the other machine, or else
// the last line.
func lastWords(text string) string {
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, errorPrefix); ok {
			return rest
		}
		if line != "" {
			last = line
		}
	}
	return last
}

func (e *SSHError) changed() bool {
	return strings.Contains(e.Text, "REMOTE HOST IDENTIFICATION HAS CHANGED")
}

func (e *SSHError) unknown() bool { return strings.Contains(e.Text, "Host key verification failed") }

// command returns what a user types to reach the machine.
func (e *SSHError) command() string {
	args := e.Address.arguments()
	return "ssh " + strings.Join(slices.DeleteFunc(args, func(s string) bool { return s == "--" }), " ")
}

// Hint returns what to type; "" where nothing is known.
func (e *SSHError) Hint() string {
	host := e.Address.Host
	if e.Address.Port != "" {
		host = "[" + host + "]:" + e.Address.Port
	}
	switch {
	case e.changed():
		return fmt.Sprintf("ask its owner; if the key has changed for a good reason: ssh-keygen -R '%s'", host)
	case e.unknown():
		return "connect once by hand and compare the fingerprint: " + e.command()
	case strings.Contains(e.Text, "Permission denied"):
		return "this must work without a question first: " + e.command() + " true"
	case strings.Contains(e.Text, "executable file not found"):
		return "apt-get install openssh-client"
	}
	if _, rest, ok := strings.Cut(e.Text, hintPrefix); ok {
		line, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(line)
	}
	return ""
}

// tail keeps the end of what is written to it. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = slices.Delete(t.text, 0, over)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
