package usernettest

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"cleat/internal/program"
	"cleat/lab"
)

// clientCases run real programs.
func clientCases() []Case {
	return slices.Concat(
		forFamilies("client/curl", curl), forFamilies("client/git", gitClone), forFamilies("client/iperf3", iperf3),
		forFamilies("client/http2", http2), forFamilies("client/ssh", sshEcho),
		[]Case{{Name: "client/apt", Check: apt}},
	)
}

// requireProgram returns a program's path, and skips the case if the program is missing.
func (x *T) requireProgram(name string) string {
	path, err := program.Find(name)
	if err != nil {
		x.Skipf("%s is not installed", name)
	}
	return path
}

// run runs a program on a node to its end and returns its output.
func (x *T) run(n *lab.Node, dir string, env []string, args ...string) string {
	var out bytes.Buffer
	cmd := exec.CommandContext(x.ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := n.NS.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		x.Fatalf("%s on %s: %v: %s", strings.Join(args, " "), n, err, strings.TrimSpace(out.String()))
	}
	return out.String()
}

// serveHTTP serves HTTP outside and returns the address.
func (x *T) serveHTTP(s *Env, f Family, h http.Handler) netip.AddrPort {
	l, to := x.service(s, Out, f)
	server := &http.Server{Handler: h}
	go server.Serve(l)
	x.Cleanup(func() { server.Close() })
	return to
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func curl(x *T, s *Env, f Family) {
	x.requireProgram("curl")
	data := randomBytes(8 << 20)
	uploaded := make(chan []byte, 1)
	at := x.serveHTTP(s, f, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			b, _ := io.ReadAll(r.Body)
			uploaded <- b
			return
		}
		w.Write(data)
	}))
	dir := x.tempDir(s)
	file := filepath.Join(dir, "got")
	x.run(s.Container, dir, nil, "curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "-o", file, fmt.Sprintf("http://%s/file", at))
	got, err := os.ReadFile(file)
	x.Must(err)
	if !bytes.Equal(got, data) {
		x.Fatalf("curl received %d bytes that differ from those served", len(got))
	}
	x.run(s.Container, dir, nil, "curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "-T", file, fmt.Sprintf("http://%s/file", at))
	if !bytes.Equal(<-uploaded, data) {
		x.Fatalf("curl's upload was changed")
	}
}

// tempDir returns a directory for the case.
func (x *T) tempDir(s *Env) string {
	dir, err := os.MkdirTemp(s.Dir, "case")
	x.Must(err)
	return dir
}

// gitClone clones over git's own HTTP protocol and pushes back.
func gitClone(x *T, s *Env, f Family) {
	git := x.requireProgram("git")
	dir := x.tempDir(s)
	env := []string{
		"HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "no_proxy=*",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example",
	}
	// CGI does not support chunked bodies, so git must send its data in one piece.
	run := func(args ...string) string {
		return x.run(s.Container, dir, env, append([]string{git, "-c", "safe.directory=*", "-c", "http.postBuffer=16777216"}, args...)...)
	}
	backend := filepath.Join(strings.TrimSpace(run("--exec-path")), "git-http-backend")
	run("init", "--quiet", "--bare", "--initial-branch=main", "origin.git")
	run("-C", "origin.git", "config", "http.receivepack", "true")
	at := x.serveHTTP(s, f, &cgi.Handler{Path: backend, Dir: dir, Env: append(env, "GIT_PROJECT_ROOT="+dir, "GIT_HTTP_EXPORT_ALL=1"), Stderr: io.Discard})
	url := fmt.Sprintf("http://%s/origin.git", at)
	run("clone", "--quiet", url, "one")
	x.Must(os.WriteFile(filepath.Join(dir, "one", "data"), randomBytes(3<<20), 0o644))
	run("-C", "one", "checkout", "--quiet", "-B", "main")
	run("-C", "one", "add", "data")
	run("-C", "one", "commit", "--quiet", "-m", "data")
	run("-C", "one", "push", "--quiet", "origin", "main")
	run("clone", "--quiet", url, "two")
	a, err := os.ReadFile(filepath.Join(dir, "one", "data"))
	x.Must(err)
	b, err := os.ReadFile(filepath.Join(dir, "two", "data"))
	x.Must(err)
	if sha256.Sum256(a) != sha256.Sum256(b) {
		x.Fatalf("the clone differs from what was pushed")
	}
}

// iperf3 moves a fixed number of bytes in each direction.
func iperf3(x *T, s *Env, f Family) {
	x.requireProgram("iperf3")
	const port = "5201"
	for _, way := range [][]string{nil, {"--reverse"}} {
		r, w, err := os.Pipe()
		x.Must(err)
		server, err := s.Outside.Start(lab.Command{
			Args: []string{"iperf3", "--server", "--one-off", "--forceflush", "--bind", remoteAddr(f, remoteServer).String(), "--port", port}, Stdout: w, Stderr: w})
		w.Close()
		x.Must(err)
		x.Cleanup(func() {
			server.Kill()
			server.Wait()
			r.Close()
		})
		x.Must(readUntil(r, "listening"))
		go io.Copy(io.Discard, r)
		x.run(s.Container, "", nil, append([]string{"iperf3", "--client", remoteAddr(f, remoteServer).String(), "--port", port, "--bytes", "32M"}, way...)...)
		server.Wait()
	}
}

// readUntil reads until a word has been read.
func readUntil(r io.Reader, word string) error {
	var said strings.Builder
	buf := make([]byte, 1000)
	for !strings.Contains(said.String(), word) {
		n, err := r.Read(buf)
		said.Write(buf[:n])
		if err != nil {
			return fmt.Errorf("wait for %q: %w; read only %q", word, err, said.String())
		}
	}
	return nil
}

// apt fetches an index and a package.
func apt(x *T, s *Env) {
	x.requireProgram("apt-get")
	x.requireProgram("dpkg-deb")
	dir := x.tempDir(s)
	repo := filepath.Join(dir, "repo")
	data := randomBytes(2 << 20)
	for name, content := range map[string][]byte{
		"tree/DEBIAN/control":        []byte("Package: parcel\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example>\nDescription: data\n"),
		"tree/usr/share/parcel/data": data,
		"apt/lists/partial/.keep":    nil,
		"apt/cache/partial/.keep":    nil,
		"apt/status":                 nil,
		"repo/.keep":                 nil,
	} {
		file := filepath.Join(dir, name)
		x.Must(os.MkdirAll(filepath.Dir(file), 0o755))
		x.Must(os.WriteFile(file, content, 0o644))
	}
	deb := filepath.Join(repo, "parcel_1_all.deb")
	x.run(s.Container, dir, nil, "dpkg-deb", "--root-owner-group", "-Znone", "--build", "tree", deb)
	b, err := os.ReadFile(deb)
	x.Must(err)
	index := fmt.Sprintf("Package: parcel\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example>\nDescription: data\nFilename: ./parcel_1_all.deb\nSize: %d\nSHA256: %x\n\n", len(b), sha256.Sum256(b))
	x.Must(os.WriteFile(filepath.Join(repo, "Packages"), []byte(index), 0o644))
	at := x.serveHTTP(s, V4, http.FileServer(http.Dir(repo)))
	list := filepath.Join(dir, "apt", "sources.list")
	x.Must(os.WriteFile(list, fmt.Appendf(nil, "deb [trusted=yes] http://%s/ ./\n", at), 0o644))
	options := []string{
		"-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Dir::Etc::main=/dev/null", "-o", "Dir::Etc::parts=/dev/null",
		"-o", "Dir::State::Lists=" + dir + "/apt/lists", "-o", "Dir::State::status=" + dir + "/apt/status", "-o", "Dir::Cache=" + dir + "/apt/cache",
		"-o", "Dir::Cache::archives=" + dir + "/apt/cache", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none", "-o", "Acquire::http::Proxy=false",
	}
	x.run(s.Container, dir, nil, append([]string{"apt-get", "update"}, options...)...)
	x.run(s.Container, dir, nil, append([]string{"apt-get", "download", "parcel"}, options...)...)
	got, err := os.ReadFile(filepath.Join(dir, "parcel_1_all.deb"))
	x.Must(err)
	if !bytes.Equal(got, b) {
		x.Fatalf("apt-get downloaded a package that differs from the repository's")
	}
}
