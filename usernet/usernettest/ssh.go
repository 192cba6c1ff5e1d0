package usernettest

import (
	"bytes"
	"crypto/ed25519"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
)

// sshEcho runs the real client, which sends bytes to a command and reads them back. The
// server is ours, because sshd switches users and a user lab has only one.
func sshEcho(x *T, s *Env, f Family) {
	client := x.requireProgram("ssh")
	l, to := x.service(s, Out, f)
	go serveSSH(l)
	want := randomBytes(1 << 20)
	cmd := exec.CommandContext(x.ctx, client, "-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no",
		"-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-p", strconv.Itoa(int(to.Port())), "somebody@"+to.Addr().String(), "cat")
	var got, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(want), &got, &said
	err := s.Container.NS.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		x.Fatalf("ssh: %v: %s", err, strings.TrimSpace(said.String()))
	}
	if !bytes.Equal(got.Bytes(), want) {
		x.Fatalf("sent %[2]d bytes, received %[1]d, or other ones", got.Len(), len(want))
	}
}

// serveSSH accepts every client, and runs a command that returns its input.
func serveSSH(l net.Listener) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return
	}
	cfg := &ssh.ServerConfig{NoClientAuth: true}
	cfg.AddHostKey(signer)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serveSSHClient(c, cfg)
	}
}

func serveSSHClient(c net.Conn, cfg *ssh.ServerConfig) {
	defer c.Close()
	_, channels, requests, err := ssh.NewServerConn(c, cfg)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for open := range channels {
		ch, requests, err := open.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range requests {
				_ = r.Reply(r.Type == "exec", nil)
				if r.Type == "exec" {
					go echoChannel(ch)
				}
			}
		}()
	}
}

func echoChannel(ch ssh.Channel) {
	_, _ = io.Copy(ch, ch)
	_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{0}))
	ch.Close()
}
