package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The copy asks its parent to run a command on the host by one datagram on the control
// socket: a hostRequest in JSON and four descriptors, which are the command's standard
// input, output and error, and a socket that lives as long as the command. The parent
// sends a hostReply on that socket when the command has ended. It kills the command when
// the copy closes its end.

type hostRequest struct {
	Args []string `json:"args"`
	CPU  []int    `json:"cpu"`
}

type hostReply struct {
	Error string `json:"error"` // "": exit status 0
}

// maxHostMessage bounds a request or a reply, in bytes.
const maxHostMessage = 64 << 10

// serveHost is the parent's side. It returns when the copy closes its end.
func serveHost(control int) {
	for {
		data, fds, err := receive(control)
		if err != nil {
			return
		}
		if len(fds) != 4 {
			closeAll(fds)
			continue
		}
		c := Command{
			Stdin:  os.NewFile(uintptr(fds[0]), "stdin"),
			Stdout: os.NewFile(uintptr(fds[1]), "stdout"),
			Stderr: os.NewFile(uintptr(fds[2]), "stderr"),
		}
		go runForLab(data, c, os.NewFile(uintptr(fds[3]), "life"))
	}
}

func runForLab(data []byte, c Command, life *os.File) {
	defer life.Close()
	var req hostRequest
	err := json.Unmarshal(data, &req)
	if err == nil && len(req.Args) == 0 {
		err = errors.New("no command given")
	}
	if err == nil {
		c.Args, c.CPU = req.Args, req.CPU
		err = runHostCommand(c, life)
	}
	for _, f := range []*os.File{c.Stdin, c.Stdout, c.Stderr} {
		f.Close()
	}
	var reply hostReply
	if err != nil {
		reply.Error = err.Error()
	}
	answer, _ := json.Marshal(reply)
	unix.Send(int(life.Fd()), answer, unix.MSG_NOSIGNAL)
}

// runHostCommand runs the command on a thread of its own. The command's life is bound to
// the thread, and so to this process.
func runHostCommand(c Command, life *os.File) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := c.cmd()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := startPinned(cmd, c.CPU); err != nil {
		return err
	}
	done := make(chan struct{})
	fd := int(life.Fd())
	go func() {
		defer close(done)
		// The copy never sends anything here: receive returns when the copy closes its
		// end.
		receive(fd)
		cmd.Process.Kill()
	}()
	err := cmd.Wait()
	// The descriptor must stay open until receive has returned.
	unix.Shutdown(fd, unix.SHUT_RD)
	<-done
	return err
}

// startBound starts c on a thread of its own, to which the command's life is bound, and so
// to this process.
func startBound(c Command) (Proc, error) {
	cmd := c.cmd()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := startPinned(cmd, c.CPU)
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	return &localProc{cmd, sync.OnceValue(func() error { return <-ended })}, nil
}

// Host is the host's own namespaces, used from inside a lab.
type Host struct{}

// Start runs c on the host, without its Extra files.
func (Host) Start(c Command) (Proc, error) {
	f, _ := Inside()
	if f == None {
		return startBound(c)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	data, err := json.Marshal(hostRequest{Args: c.Args, CPU: c.CPU})
	if err != nil {
		return nil, err
	}
	rights := unix.UnixRights(fdOr(c.Stdin, null), fdOr(c.Stdout, null), fdOr(c.Stderr, null), int(theirs.Fd()))
	if err := unix.Sendmsg(controlFD, data, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		ours.Close()
		return nil, fmt.Errorf("ask the host to start %s: %w", c.Args[0], err)
	}
	return &hostProc{ours, sync.OnceValue(func() error { return awaitReply(ours) })}, nil
}

func fdOr(f, otherwise *os.File) int {
	if f == nil {
		f = otherwise
	}
	return int(f.Fd())
}

// hostProc is a program that the parent runs for the lab.
type hostProc struct {
	life *os.File
	wait func() error
}

func (p *hostProc) PID() int    { return 0 }
func (p *hostProc) Kill()       { unix.Shutdown(int(p.life.Fd()), unix.SHUT_WR) }
func (p *hostProc) Wait() error { return p.wait() }

// awaitReply waits until the command has ended.
func awaitReply(life *os.File) error {
	defer life.Close()
	data, fds, err := receive(int(life.Fd()))
	closeAll(fds)
	if err != nil {
		return err
	}
	var reply hostReply
	if err := json.Unmarshal(data, &reply); err != nil {
		return err
	}
	if reply.Error != "" {
		return errors.New(reply.Error)
	}
	return nil
}

// receive reads one datagram and its descriptors. It returns io.EOF at the end of the
// socket.
func receive(fd int) ([]byte, []int, error) {
	data := make([]byte, maxHostMessage)
	oob := make([]byte, unix.CmsgSpace(4*4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, data, oob, unix.MSG_CMSG_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("receive from the lab: %w", err)
		case n == 0:
			return nil, nil, io.EOF
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return nil, nil, fmt.Errorf("parse control message: %w", err)
		}
		var fds []int
		for _, m := range messages {
			if got, err := unix.ParseUnixRights(&m); err == nil {
				fds = append(fds, got...)
			}
		}
		return data[:n], fds, nil
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
